package arch

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every test that the threat model names has to exist, and every promise in it has to name one.
func TestThreatModelNamesTests(t *testing.T) {
	text, err := os.ReadFile("../../docs/threat-model.md")
	if err != nil {
		t.Fatal(err)
	}
	exists := testNames(t, "../..")
	name := regexp.MustCompile("`(Test[A-Za-z0-9_]+)`")
	for _, found := range name.FindAllStringSubmatch(string(text), -1) {
		if !exists[found[1]] {
			t.Errorf("there is no %s", found[1])
		}
	}
	promises := 0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| promise |") {
			continue
		}
		promises++
		if !name.MatchString(line) {
			t.Errorf("no test shows: %s", strings.TrimSpace(line))
		}
	}
	if promises == 0 {
		t.Error("the threat model promises nothing")
	}
}

// testNames are the tests of all packages below a folder, whatever they are built for.
func testNames(t *testing.T, root string) map[string]bool {
	t.Helper()
	declared := regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+)\(`)
	names := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, found := range declared.FindAllStringSubmatch(string(source), -1) {
			names[found[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
