// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/thenforce/thenforce/test/needs"
)

func TestEngineFollowsWhatItMay(t *testing.T) {
	needs.Symlinks(t)
	workspace, outside := bindings(t)
	if err := os.Symlink("file", filepath.Join(workspace, "in")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(outside, "secret"), filepath.Join(workspace, "out")); err != nil {
		t.Fatal(err)
	}
	c := newClient(t, "")
	binding := c.bind(workspace)
	follow := `{"binding":%q,"target":%q,"options":{"followSymlinks":true}}`
	if d := c.object("checkContainment", `{"binding":%q,"target":"in"}`, binding); d["code"] != "symlink" {
		t.Errorf("a link: %v", d)
	}
	if d := c.object("checkContainment", follow, binding, "in"); d["outcome"] != "allowed" || d["resolvedPath"] != filepath.Join(workspace, "file") {
		t.Errorf("a followed link: %v", d)
	}
	if d := c.object("checkContainment", follow, binding, "out"); d["code"] != "link-escape" {
		t.Errorf("a link that leads out: %v", d)
	}
	if got := c.object("readFile", follow, binding, "in"); got["contentBase64"] != "a2VwdA==" {
		t.Errorf("read through a link: %v", got)
	}
	if data := c.fails(-32001, "readFile", follow, binding, "out"); data["code"] != "link-escape" {
		t.Errorf("read through a link that leads out: %v", data)
	}
}
