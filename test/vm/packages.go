//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// goPackage is a package that has tests for guests.
type goPackage struct {
	path  string // import path
	dir   string // on the host
	rel   string // below the module, slash-separated
	tests []string
}

// listed is what go list says of a package.
type listed struct {
	ImportPath   string
	Dir          string
	TestGoFiles  []string
	XTestGoFiles []string
	Module       *struct{ Path, Dir string }
}

// findPackages returns the packages matching the patterns that have test files
// with the build tag vm, and the names of the tests in those files; with
// untagged, the names of the other files' tests too.
func findPackages(ctx context.Context, patterns []string, untagged bool) ([]goPackage, error) {
	with, err := goList(ctx, patterns, "-tags=vm")
	if err != nil {
		return nil, err
	}
	// -e: a package may have nothing but files with the tag.
	without, err := goList(ctx, patterns, "-e")
	if err != nil {
		return nil, err
	}
	plain := map[string]bool{}
	for _, p := range without {
		for _, f := range p.testFiles() {
			plain[f] = true
		}
	}
	var out []goPackage
	for _, p := range with {
		var files []string
		tagged := false
		for _, f := range p.testFiles() {
			tagged = tagged || !plain[f]
			if untagged || !plain[f] {
				files = append(files, f)
			}
		}
		if !tagged && !(untagged && len(files) > 0) {
			continue
		}
		g := goPackage{path: p.ImportPath, dir: p.Dir}
		if p.Module == nil {
			return nil, fmt.Errorf("%s belongs to no module", p.ImportPath)
		}
		rel, err := filepath.Rel(p.Module.Dir, p.Dir)
		if err != nil {
			return nil, err
		}
		g.rel = filepath.ToSlash(rel)
		for _, f := range files {
			names, err := testNames(f)
			if err != nil {
				return nil, err
			}
			g.tests = append(g.tests, names...)
		}
		out = append(out, g)
	}
	return out, nil
}

func (p listed) testFiles() []string {
	var out []string
	for _, f := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
		out = append(out, filepath.Join(p.Dir, f))
	}
	return out
}

// guestGo returns a go command for the guest's platform.
func guestGo(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	return cmd
}

func goList(ctx context.Context, patterns []string, flags ...string) ([]listed, error) {
	args := append([]string{"list", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles,Module"}, flags...)
	text, err := output(guestGo(ctx, append(args, patterns...)...))
	if err != nil {
		return nil, err
	}
	var out []listed
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, fmt.Errorf("read the answer of go list: %w", err)
		}
		out = append(out, p)
	}
}

// testNames returns the names of the tests in a file. Reading the source rather
// than asking the binary keeps TestMain, which may want root, off the host.
func testNames(file string) ([]string, error) {
	tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, d := range tree.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && isTest(f.Name.Name) {
			out = append(out, f.Name.Name)
		}
	}
	return out, nil
}

// isTest is the rule of go test: "Test" and not a lower-case letter after it.
func isTest(name string) bool {
	rest, ok := strings.CutPrefix(name, "Test")
	if !ok || name == "TestMain" {
		return false
	}
	r, _ := utf8.DecodeRuneInString(rest)
	return rest == "" || !unicode.IsLower(r)
}

// selectTests returns those of the package's tests that belong to the profile
// and match run, a pattern as of go test -run of which the part before the first
// slash counts here.
func (p goPackage) selectTests(prof profile, run string) ([]string, error) {
	top, _, _ := strings.Cut(run, "/")
	match, err := regexp.Compile(top)
	if err != nil {
		return nil, fmt.Errorf("--run %s: %w", run, err)
	}
	var out []string
	for _, name := range p.tests {
		of, err := profileOf(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.path, err)
		}
		if of.name == prof.name && match.MatchString(name) {
			out = append(out, name)
		}
	}
	return out, nil
}

// runPattern is the -test.run of the named tests, with run's part for subtests.
func runPattern(names []string, run string) string {
	pattern := "^(" + strings.Join(names, "|") + ")$"
	if _, sub, ok := strings.Cut(run, "/"); ok {
		pattern += "/" + sub
	}
	return pattern
}

// buildTest compiles the test binary of a package.
func buildTest(ctx context.Context, tag, pkg, to string) error {
	// Without symbol table and debug information the binary is half the size;
	// traces of panics have names and lines all the same.
	_, err := output(guestGo(ctx, "test", "-c", "-tags="+tag, "-ldflags=-s -w", "-o", to, pkg))
	return err
}

func output(cmd *exec.Cmd) ([]byte, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}
