package loader

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/thenforce/thenforce/pkg/mountmap"
	"golang.org/x/sys/unix"
)

// groupsName is the folder that the cgroups which thenforce makes lie in, below the mount.
const groupsName = "thenforce"

// isRunGroup tells the names that "run" gives its cgroups.
func isRunGroup(name string) bool {
	return len(name) == 12 && strings.Trim(name, "0123456789abcdef") == ""
}

// collectFiles removes what a killed process was writing, the folder that its canaries' file system was mounted on, and the
// programs that it had replaced or was about to bring into force.
func (e *Enforcer) collectFiles() {
	e.endUpgrade()
	os.Remove(e.asidePath())
	os.Remove(e.canaryDir())
}

// collectRecords removes those of canaries that are in no map of this enforcer: a rehearsal's, whose maps are gone. Other
// records that it does not know may be another version's.
func (e *Enforcer) collectRecords() {
	policies, err := filepath.Glob(e.policyPath("*"))
	if err != nil {
		return
	}
	for _, path := range policies {
		id := strings.TrimSuffix(filepath.Base(path), filepath.Base(e.policyPath("")))
		if e.slotOf(id) >= 0 {
			continue
		}
		var h header
		err := readJSON(e.headerPath(id), &h)
		if err == nil && strings.HasPrefix(filepath.Base(h.Cgroup), canaryPrefix) || errors.Is(err, fs.ErrNotExist) {
			os.Remove(e.headerPath(id))
			os.Remove(path)
		}
	}
}

// collectCgroups removes the cgroups of processes that were killed before they had made a jail, or when the jail was gone
// already. The caller holds the lock, so no canaries are alive.
func (e *Enforcer) collectCgroups() {
	mount := e.cgroupMount()
	if mount == "" {
		return
	}
	parent := filepath.Join(mount, groupsName)
	entries, err := os.ReadDir(parent)
	if err != nil {
		return // mostly: no run is under way
	}
	jailed := map[string]bool{}
	for i := range e.jailSlots {
		if id := e.jailSlots[i].Id; id != 0 {
			if h, err := e.header(id); err == nil {
				jailed[h.Cgroup] = true
			}
		}
	}
	for _, entry := range entries {
		path := filepath.Join(parent, entry.Name())
		switch {
		case !entry.IsDir() || jailed[path]:
		case strings.HasPrefix(entry.Name(), canaryPrefix):
			endCanaries(path)
		case isRunGroup(entry.Name()):
			e.removeUnclaimed(path)
		}
	}
	os.Remove(parent) // only where nothing else is in it
}

// removeUnclaimed removes a cgroup whose maker is gone, and that is no jail's: who makes one keeps a lock on it. (Somebody
// who has made it and not locked it yet finds it gone and makes another.) One with tasks or further cgroups in it stays.
func (e *Enforcer) removeUnclaimed(path string) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return
	}
	id, err := CgroupID(dir)
	if err != nil {
		return
	}
	if slot, _, err := e.around(id); err != nil || slot >= 0 {
		return
	}
	unix.Rmdir(path)
}

// cgroupMount is where cgroup v2 is mounted, or empty.
func (e *Enforcer) cgroupMount() string {
	if e.cgroups == "" {
		if table, err := mountmap.Read(); err == nil {
			e.cgroups = cgroupMount(table)
		}
	}
	return e.cgroups
}
