// SPDX-License-Identifier: Apache-2.0

// A client of "thenforce engine": JSON-RPC 2.0 over the standard input and output of a child process.

import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';

/** An answer of the engine that says what went wrong. `data` is the decision where it refused (code -32001). */
export class EngineError extends Error {
  constructor({ code, message, data }) {
    super(message);
    this.name = 'EngineError';
    this.code = code;
    this.data = data;
  }
}

/** One running engine. When it ends, every call that waits or comes later fails: no answer is never a yes. */
export class Engine {
  #child;
  #waiting = new Map();
  #nextId = 1;
  #dead = null;

  constructor(program = process.env.THENFORCE ?? 'thenforce') {
    this.#child = spawn(program, ['engine'], { stdio: ['pipe', 'pipe', 'inherit'] });
    this.#child.on('error', (err) => this.#end(err));
    this.#child.on('close', (code, signal) => this.#end(new Error(`the engine ended (${signal ?? code})`)));
    this.#child.stdin.on('error', (err) => this.#end(err));
    createInterface({ input: this.#child.stdout, crlfDelay: Infinity }).on('line', (line) => this.#answer(line));
  }

  /** Calls a method; resolves with its result and rejects with an EngineError. */
  call(method, params = {}) {
    if (this.#dead) return Promise.reject(this.#dead);
    const id = this.#nextId++;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      this.#child.stdin.write(JSON.stringify({ jsonrpc: '2.0', id, method, params }) + '\n');
    });
  }

  /** Ends the engine once what was asked is answered. */
  close() {
    this.#child.stdin.end();
  }

  #answer(line) {
    let answer;
    try {
      answer = JSON.parse(line);
    } catch (err) {
      return this.#end(err);
    }
    const call = this.#waiting.get(answer.id);
    // Without an id the engine could not read a request, and nobody knows which.
    if (!call) return this.#end(new Error(`unexpected answer: ${line}`));
    this.#waiting.delete(answer.id);
    if (answer.error) call.reject(new EngineError(answer.error));
    else call.resolve(answer.result);
  }

  #end(err) {
    if (this.#dead) return;
    this.#dead = err;
    for (const { reject } of this.#waiting.values()) reject(err);
    this.#waiting.clear();
    this.#child.kill();
  }
}
