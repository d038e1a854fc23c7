// Package arch holds the rules of the house that a compiler does not check.
package arch

import (
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/thenforce/thenforce/"

// mayImport says which packages of the module a package may import. Imports point one way:
// cmd -> {loader, fallback} -> engine -> mountmap.
var mayImport = map[string][]string{
	"pkg/mountmap":        {},
	"pkg/engine":          {"pkg/mountmap"},
	"pkg/engine/memfs":    {"pkg/engine", "pkg/mountmap"},
	"pkg/loader":          {"pkg/engine", "pkg/mountmap"},
	"pkg/fallback":        {"pkg/engine", "pkg/mountmap"},
	"internal/cgroup":     {"pkg/mountmap"},
	"internal/eventlog":   {"pkg/loader"},
	"internal/policyfile": {"pkg/engine"},
	"internal/scan":       {"pkg/engine", "pkg/fallback", "pkg/mountmap"},
	"internal/rpc":        {},
	"cmd/thenforce":       {"pkg/", "internal/"},
}

// onlyIn says which packages may import something from outside.
var onlyIn = []struct {
	imported string
	by       []string
	why      string
}{
	{"github.com/cilium/ebpf", []string{"pkg/loader", "test/bench"}, "the loader is the only one that knows kernel objects; the bench attaches an empty program"},
	{"github.com/sirupsen/logrus", []string{"cmd/thenforce"}, "libraries return errors and values, only the command logs"},
	{"github.com/spf13/cobra", []string{"cmd/thenforce"}, "the command line is the command's"},
}

type listed struct {
	ImportPath string
	Imports    []string
}

func TestImportsPointOneWay(t *testing.T) {
	for _, goos := range []string{"linux", "windows", "darwin"} {
		cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Imports", module+"...")
		cmd.Env = append(cmd.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list for %s: %v", goos, err)
		}
		found := 0
		for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
			var p listed
			if err := dec.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			found++
			check(t, goos, p)
		}
		if found < len(mayImport) {
			t.Errorf("%s: only %d packages looked at", goos, found)
		}
	}
}

func check(t *testing.T, goos string, p listed) {
	t.Helper()
	name := strings.TrimPrefix(p.ImportPath, module)
	allowed, ruled := mayImport[name]
	for _, imported := range p.Imports {
		if inside, ok := strings.CutPrefix(imported, module); ok {
			if ruled && !anyPrefix(inside, allowed) {
				t.Errorf("%s: %s imports %s; it may import %v", goos, name, inside, allowed)
			}
			if strings.HasPrefix(inside, "cmd/") {
				t.Errorf("%s: %s imports the command", goos, name)
			}
			if !ruled && strings.HasPrefix(name, "pkg/") {
				t.Errorf("%s: %s has no rule here: add one", goos, name)
			}
			continue
		}
		for _, rule := range onlyIn {
			if imported == rule.imported || strings.HasPrefix(imported, rule.imported+"/") {
				if !anyPrefix(name, rule.by) {
					t.Errorf("%s: %s imports %s, which only %v may: %s", goos, name, imported, rule.by, rule.why)
				}
			}
		}
	}
}

func anyPrefix(name string, prefixes []string) bool {
	for _, p := range prefixes {
		if name == p || strings.HasPrefix(name, strings.TrimSuffix(p, "/")+"/") {
			return true
		}
	}
	return false
}

// A file that imports golang.org/x/sys/unix says by its name that it is not for every system.
func TestUnixFilesSayTheyAre(t *testing.T) {
	fset := token.NewFileSet()
	checked := 0
	err := filepath.WalkDir("../../pkg", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		file, err := parser.ParseFile(fset, path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		name := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(path), ".go"), "_test")
		name = strings.TrimSuffix(name, "_amd64")
		for _, imported := range file.Imports {
			if imported.Path.Value != `"golang.org/x/sys/unix"` {
				continue
			}
			checked++
			if !strings.HasSuffix(name, "_linux") && !strings.HasSuffix(name, "_unix") && !strings.HasSuffix(name, "_darwin") && !strings.HasSuffix(name, "_vm") {
				t.Errorf("%s imports golang.org/x/sys/unix: name it ..._linux.go or ..._unix.go", path)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked == 0 {
		t.Error("no file was looked at")
	}
}
