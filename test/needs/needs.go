// Package needs says what a test needs of the system that it runs on. Where
// something is missing the test fails, except under wine: there it is skipped,
// and test/wine has a list of the tests that may be.
package needs

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// Missing ends a test that needs a feature which is not there, as err says.
func Missing(t testing.TB, feature string, err error) {
	t.Helper()
	if Wine() {
		t.Skipf("wine lacks %s: %v", feature, err)
	}
	t.Fatalf("this system lacks %s: %v", feature, err)
}

// Symlinks lets a test go on that makes symbolic links.
func Symlinks(t testing.TB) {
	t.Helper()
	if err := symlinks(); err != nil {
		Missing(t, "symbolic links", err)
	}
}

// HaveSymlinks reports whether there are symbolic links, for a fixture that has
// some which not every test looks at.
func HaveSymlinks() bool { return symlinks() == nil }

// symlinks makes one. It is looked at afterwards since wine says that it made
// one and did not; on Windows it takes a privilege, or developer mode.
var symlinks = sync.OnceValue(func() error {
	dir, err := os.MkdirTemp("", "needs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	link := filepath.Join(dir, "link")
	if err := os.Symlink("target", link); err != nil {
		return err
	}
	_, err = os.Readlink(link)
	return err
})
