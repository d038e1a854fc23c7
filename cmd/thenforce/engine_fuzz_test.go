// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/thenforce/thenforce/internal/rpc"
	"github.com/thenforce/thenforce/pkg/engine"
)

// FuzzEngine: no request makes the engine panic, and each gets one answer. writeFile is left out, since a request may
// bind any directory of this machine.
func FuzzEngine(f *testing.F) {
	s, err := newSession("")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(s.close)
	s.status = func() (engine.EnforcementStatus, error) { return engine.EnforcementStatus{}, nil }
	methods := s.methods()
	delete(methods, "writeFile")
	binding := engine.Bind(f.TempDir(), s.probes)
	s.bindings["b"] = binding
	for method, params := range map[string]string{
		"bind":               `{"root":"/tmp","rootBytes":"L3RtcA=="}`,
		"checkContainment":   `{"binding":"b","target":"a/../../b","options":{"followSymlinks":true,"followMountPoints":true}}`,
		"decide":             `{"policy":{"version":1,"workspace":"/tmp","workspaceRights":"=rwc","mode":"monitor","follow":{"symlinks":true},"symlinks":"refuse","presets":["none"],"grants":[{"path":"../var","rights":"ro+u","reason":"r","expires":"2h","optional":true}],"deny":["x"]},"path":"x","op":"rename","to":"y","enforcementAvailable":true}`,
		"checkHardBoundary":  `{"workspaceRoot":"C:\\w","candidatePath":"a","commandClass":null,"networkDestination":"h","allowlistedNetworkDestinations":["h"],"quotaExceeded":false,"credentialGroup":"a","expectedCredentialGroup":"a"}`,
		"snapshot":           `{"binding":"b","target":"x"}`,
		"revalidate":         `{"original":{"resourceIdentity":"a","workspaceId":"w","enforcementAvailable":true,"live":{"object":{"dev":"1","ino":"2"},"parent":{}}},"current":{"workspaceId":"w","enforcementAvailable":true}}`,
		"readFile":           `{"binding":"b","target":"x"}`,
		"expansion.grant":    `{"resourceIdentity":"/w/f","workspaceId":"w","actionClasses":["read_file"],"reason":"r","expiresAt":"2030-01-01T00:00:00Z"}`,
		"expansion.isActive": `{"expansionId":"x","resourceIdentity":"/w/f","workspaceId":"w","actionClass":"read_file","now":"2030-01-01T00:00:00Z"}`,
		"expansion.revoke":   `{"expansionId":"x"}`,
		"version":            `{}`,
	} {
		f.Add(method, []byte(params))
	}
	f.Fuzz(func(t *testing.T, method string, params []byte) {
		request, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": json.RawMessage(params)})
		if err != nil {
			return // the parameters are not JSON; package rpc has its own fuzz target
		}
		var out bytes.Buffer
		if err := rpc.Serve(bytes.NewReader(request), &out, methods); err != nil {
			t.Fatal(err)
		}
		if bytes.Count(out.Bytes(), []byte("\n")) != 1 || !json.Valid(out.Bytes()) {
			t.Errorf("%s is answered with %q", request, out.Bytes())
		}
		clear(s.bindings)
		s.bindings["b"] = binding
	})
}
