// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/thenforce/thenforce/pkg/engine"
)

func TestRightsABI(t *testing.T) {
	// The BPF programs hold these numbers.
	for want, got := range map[engine.Rights]engine.Rights{
		1: engine.Read, 2: engine.Write, 4: engine.Create, 8: engine.Delete, 16: engine.Exec, 32: engine.Connect,
	} {
		if got != want {
			t.Errorf("right %d is %d", want, got)
		}
	}
}

func TestParseRights(t *testing.T) {
	const r, w, c, d, x, u = engine.Read, engine.Write, engine.Create, engine.Delete, engine.Exec, engine.Connect
	tests := map[string]engine.Rights{
		"ro": r, "rx": r | x, "rw": r | w | c | d, "rwx": r | w | c | d | x,
		"ro+u": r | u, "rx+u": r | x | u, "rw+u": r | w | c | d | u, "rwx+u": r | w | c | d | x | u,
		"none": 0, "=r": r, "=w": w, "=u": u, "=ur": r | u, "=rwcdxu": r | w | c | d | x | u, "=xd": x | d,
	}
	for text, want := range tests {
		if got, err := engine.ParseRights(text); err != nil || got != want {
			t.Errorf("ParseRights(%q) = %v, %v; want %#x", text, got, err, uint8(want))
		}
	}
	for _, text := range []string{
		"", "r", "RO", " ro", "ro ", "rwxu", "rw+x", "ro+u+u", "+u", "none+u", "=", "=z", "=rr", "= r", "=ro", "rights(0x40)", "=r+u", "rw,x", "ro\x00",
	} {
		got, err := engine.ParseRights(text)
		if err == nil {
			t.Errorf("ParseRights(%q) = %v", text, got)
			continue
		}
		if !strings.Contains(err.Error(), "rwx") || !strings.Contains(err.Error(), "none") {
			t.Errorf("ParseRights(%q): %q does not name the accepted forms", text, err)
		}
	}
	if _, err := engine.ParseRights("wr"); err == nil || !strings.Contains(err.Error(), `"wr"`) {
		t.Errorf("the error does not name the value: %v", err)
	}
}

func TestRightsString(t *testing.T) {
	for r := range engine.AllRights + 1 {
		back, err := engine.ParseRights(r.String())
		if err != nil || back != r {
			t.Errorf("%#x is %q, which parses as %v, %v", uint8(r), r, back, err)
		}
	}
	for want, r := range map[string]engine.Rights{
		"none": 0, "ro": engine.Read, "ro+u": engine.Read | engine.Connect, "rwx+u": engine.AllRights, "=rw": engine.Read | engine.Write, "=u": engine.Connect,
	} {
		if r.String() != want {
			t.Errorf("%#x = %q, want %q", uint8(r), r, want)
		}
	}
	bad := engine.Rights(0x40 | engine.Read)
	if bad.Valid() {
		t.Error("an unknown bit is valid")
	}
	if back, err := engine.ParseRights(bad.String()); err == nil {
		t.Errorf("%q, which has an unknown bit, parses as %v", bad, back)
	}
	if text, err := json.Marshal(bad); err == nil {
		t.Errorf("unknown rights were written as %s", text)
	}
	if text, err := json.Marshal(engine.Read | engine.Exec); err != nil || string(text) != `"rx"` {
		t.Errorf("rx in JSON: %s, %v", text, err)
	}
}

func TestParseWorkspaceRights(t *testing.T) {
	if r, err := engine.ParseWorkspaceRights("ro"); err != nil || r != engine.Read {
		t.Errorf("ro = %v, %v", r, err)
	}
	// None would be taken for the default, which is everything.
	if r, err := engine.ParseWorkspaceRights("none"); err == nil {
		t.Errorf("none = %v", r)
	}
}

func TestModeText(t *testing.T) {
	for _, mode := range []engine.Mode{engine.Enforce, engine.Monitor} {
		text, err := mode.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		back := engine.Mode(99)
		if err := back.UnmarshalText(text); err != nil || back != mode {
			t.Errorf("%s reads back as %v, %v", text, back, err)
		}
	}
	if engine.Enforce != 0 {
		t.Error("the zero mode is not enforce")
	}
	if text, err := engine.Mode(2).MarshalText(); err == nil {
		t.Errorf("an unknown mode was written as %s", text)
	}
	var mode engine.Mode
	if err := mode.UnmarshalText([]byte("Enforce")); err == nil {
		t.Error("a misspelt mode was read")
	}
}
