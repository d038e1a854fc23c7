//go:build vm

package loader

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// Nobody may be granted what jails rest on, by whatever path: a container may have the host's /run at any place.
func TestGrantsOfOwnState(t *testing.T) {
	e := openVerified(t)
	s := &scene{}
	if err := s.makeCgroup("/sys/fs/cgroup", "guard-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	base := tmpfsIn(t)
	mirror := func(name, of string) string {
		at := filepath.Join(base, name)
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(of, at, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(at, unix.MNT_DETACH) })
		return at
	}
	try := func(path string, rights engine.Rights) error {
		j, err := e.CreateJail(JailSpec{
			Cgroup: s.cgroup, CgroupPath: s.path,
			Sets: engine.AllowedSets{
				Workspace: engine.WorkspaceIdentity{CanonicalRoot: path},
				Objects:   []engine.Object{{Path: path, Rights: rights, Source: engine.SourceWorkspace}},
			},
		})
		if err == nil {
			err = e.DeleteJail(j.ID)
			if err != nil {
				t.Fatal(err)
			}
		}
		return err
	}
	if err := try(base, engine.AllRights); err != nil {
		t.Fatalf("a directory like any other: %v", err)
	}
	for _, path := range []string{
		"/run", "/run/thenforce", "/run/thenforce/lock", mirror("run", "/run"), mirror("own", "/run/thenforce"),
		"/sys/fs/cgroup", "/sys/fs/bpf", mirror("bpf", "/sys/fs/bpf"),
	} {
		if err := try(path, engine.AllRights); err == nil || !strings.HasPrefix(err.Error(), "grant "+path+":") {
			t.Errorf("%s with all rights: %v", path, err)
		}
		if err := try(path, engine.Read); err != nil {
			t.Errorf("%s to read: %v", path, err)
		}
	}
}
