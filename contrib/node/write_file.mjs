// SPDX-License-Identifier: Apache-2.0

// An agent's write_file tool that cannot be led out of a workspace.
//
//   node write_file.mjs WORKSPACE < calls
//
// Each line of the input is a call, {"path":...,"content":...}, and gets a line of output.

import { realpathSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { Engine, EngineError } from './engine.mjs';

/**
 * Makes the tool for one workspace. `approve` is asked before every write and may take its time: a person thinks.
 * Meanwhile the path may come to mean something else, so what was approved is compared with what is there then.
 */
export async function writeFileTool(engine, root, approve) {
  const workspace = await engine.call('bind', { root });
  if (workspace.bindingStatus !== 'bound') throw new Error(`${root}: ${workspace.blockedReason}`);
  const binding = workspace.workspaceId;

  return async function writeFile({ path, content }) {
    const target = { binding, target: path };
    const decision = await engine.call('checkContainment', target);
    if (decision.outcome !== 'allowed') return refused(decision);

    const original = await engine.call('snapshot', target);
    if (!(await approve(decision.resolvedPath))) return { ok: false, code: 'not-approved', reason: 'it was not approved' };
    const current = await engine.call('snapshot', target);
    const { stale, reason } = await engine.call('revalidate', { original, current });
    if (stale) return { ok: false, code: reason, reason: 'it changed after it was approved' };

    // This checks once more, and opens what it checked: between those two nobody can put a link in its place.
    try {
      const contentBase64 = Buffer.from(content, 'utf8').toString('base64');
      const { written } = await engine.call('writeFile', { ...target, contentBase64 });
      return { ok: true, path: decision.resolvedPath, written };
    } catch (err) {
      if (err instanceof EngineError) return refused(err.data ?? { code: String(err.code), reason: err.message });
      throw err;
    }
  };
}

function refused({ code, reason }) {
  return { ok: false, code, reason: reason ?? code };
}

if (process.argv[1] && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  if (process.argv.length !== 3) {
    console.error('usage: node write_file.mjs WORKSPACE < calls');
    process.exit(2);
  }
  const engine = new Engine();
  try {
    const writeFile = await writeFileTool(engine, process.argv[2], async () => true);
    for await (const line of createInterface({ input: process.stdin })) {
      console.log(JSON.stringify(await writeFile(JSON.parse(line))));
    }
  } catch (err) {
    console.error(`write_file: ${err.message}`);
    process.exitCode = 1;
  } finally {
    engine.close();
  }
}
