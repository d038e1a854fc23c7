package loader

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// Caveat is something that a task of a jail has from before, or was given, and that its policy would not let it open: a
// jail judges what its tasks do, not what they hold.
type Caveat struct {
	PID  int    `json:"pid"`
	Kind string `json:"kind"` // "fd", "cwd", "root" or "map"
	Path string `json:"path"`
}

// Caveats looks at every process of a live jail. Processes that end meanwhile are passed over; one that cannot be looked
// at is an error.
func (e *Enforcer) Caveats(j *Jail) ([]Caveat, error) {
	pids, err := processesIn(j.Cgroup)
	if err != nil {
		return nil, err
	}
	var all []Caveat
	for _, pid := range pids {
		found, err := e.caveatsOf(j, pid)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
			return nil, err
		}
		all = append(all, found...)
	}
	slices.SortFunc(all, func(a, b Caveat) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Path, b.Path))
	})
	return slices.Compact(all), nil
}

// processesIn lists the processes of a cgroup and all below it.
func processesIn(cgroup string) ([]int, error) {
	var pids []int
	err := filepath.WalkDir(cgroup, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case !entry.IsDir():
			return nil
		}
		text, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return nil // removed meanwhile
		}
		for _, field := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
		return err
	})
	return pids, err
}

func (e *Enforcer) caveatsOf(j *Jail, pid int) ([]Caveat, error) {
	var all []Caveat
	proc := fmt.Sprintf("/proc/%d/", pid)
	task, err := openTask(proc)
	if err != nil {
		return nil, err
	}
	defer task.Close()
	look := func(kind, link string, as judging, need engine.Rights) error {
		allowed, err := e.wouldAllow(j, task, proc+link, as, need)
		if err != nil || allowed {
			return err
		}
		path, err := os.Readlink(proc + link)
		if err == nil {
			all = append(all, Caveat{PID: pid, Kind: kind, Path: path})
		}
		return err
	}
	if err := look("cwd", "cwd", judgeObject, engine.Read); err != nil {
		return nil, err
	}
	if !sameObject(proc+"root", "/proc/self/root") {
		if err := look("root", "root", judgeObject, engine.Read); err != nil {
			return nil, err
		}
	}
	fds, err := os.ReadDir(proc + "fd")
	if err != nil {
		return nil, err
	}
	for _, fd := range fds {
		need, ok := openFor(proc + "fdinfo/" + fd.Name())
		if !ok {
			continue
		}
		if err := look("fd", "fd/"+fd.Name(), judgeFile, need); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	maps, err := mapped(proc + "maps")
	if err != nil {
		return nil, err
	}
	for link, need := range maps {
		if err := look("map", "map_files/"+link, judgeFile, need); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return all, nil
}

// wouldAllow asks whether the jail would let its tasks open what a link of /proc leads to.
func (e *Enforcer) wouldAllow(j *Jail, task *Task, link string, as judging, need engine.Rights) (bool, error) {
	fd, err := unix.Open(link, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, &fs.PathError{Op: "open", Path: link, Err: err}
	}
	f := os.NewFile(uintptr(fd), link)
	defer f.Close()
	v, err := e.judge(j.slot, task, f, as, need)
	return v.code == codeNames[0], err
}

func sameObject(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil {
		return true // gone with its process
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}

// openFor tells by proc_pid_fdinfo(5) what a descriptor can be used for. One with O_PATH can be used for nothing that is
// not judged.
func openFor(fdinfo string) (engine.Rights, bool) {
	text, err := os.ReadFile(fdinfo)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		octal, ok := strings.CutPrefix(line, "flags:")
		if !ok {
			continue
		}
		flags, err := strconv.ParseUint(strings.TrimSpace(octal), 8, 64)
		if err != nil || flags&unix.O_PATH != 0 {
			return 0, false
		}
		switch flags & unix.O_ACCMODE {
		case unix.O_RDONLY:
			return engine.Read, true
		case unix.O_WRONLY:
			return engine.Write, true
		}
		return engine.Read | engine.Write, true
	}
	return 0, false
}

// mapped tells the files that a process has mapped, by their names in /proc/PID/map_files, and what for; see
// proc_pid_maps(5). A private mapping changes nothing of the file.
func mapped(maps string) (map[string]engine.Rights, error) {
	f, err := os.Open(maps)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := map[string]engine.Rights{}
	seen := map[string]bool{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[4] == "0" || len(fields[1]) != 4 {
			continue // anonymous, or the kernel's own
		}
		var need engine.Rights
		if fields[1][0] == 'r' {
			need |= engine.Read
		}
		if fields[1][1] == 'w' && fields[1][3] == 's' {
			need |= engine.Write
		}
		if fields[1][2] == 'x' {
			need |= engine.Exec
		}
		// One of a file's mappings stands for those with the same rights.
		what := fields[3] + " " + fields[4] + " " + need.String()
		if need == 0 || seen[what] {
			continue
		}
		seen[what] = true
		out[mapFile(fields[0])] = need
	}
	return out, lines.Err()
}

// mapFile turns a range as /proc/PID/maps has it into the name in map_files, which has no leading zeros.
func mapFile(addresses string) string {
	from, to, _ := strings.Cut(addresses, "-")
	short := func(s string) string {
		if s = strings.TrimLeft(s, "0"); s == "" {
			return "0"
		}
		return s
	}
	return short(from) + "-" + short(to)
}
