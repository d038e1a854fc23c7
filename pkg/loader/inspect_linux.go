package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/mountmap"
	"golang.org/x/sys/unix"
)

const (
	lsmListPath  = "/sys/kernel/security/lsm"
	lockdownPath = "/sys/kernel/security/lockdown"
	btfPath      = "/sys/kernel/btf/vmlinux"
	bpffsPath    = "/sys/fs/bpf"
	ftracePath   = "/proc/sys/kernel/ftrace_enabled"
)

// look fills in everything that can be seen without touching a BPF object.
func look(opts Options) engine.EnforcementStatus {
	s := engine.EnforcementStatus{
		Backend: "bpf-lsm",
		LSM:     []string{},
		Reasons: []engine.EnforcementReason{},
		Hooks:   []engine.HookStatus{},
	}
	for _, a := range attachments {
		s.Hooks = append(s.Hooks, engine.HookStatus{Name: a.name, Required: !a.newer && !a.onDemand})
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err == nil {
		s.Kernel = unix.ByteSliceToString(uts.Release[:])
	}
	lookAtModules(&s)
	lookAtFtrace(&s)
	if lockdown() {
		// The programs would be refused with an error that blames them.
		s.Add(engine.Lockdown, lockdownPath+" says confidentiality")
	}
	if !onFileSystem("/sys", unix.SYSFS_MAGIC) {
		s.Add(engine.BTFMissing, "/sys is not a sysfs")
	} else if _, err := os.Stat(btfPath); err != nil {
		s.Add(engine.BTFMissing, err.Error())
	} else {
		s.BTF = true
	}
	lookAtMounts(&s)
	lookAtOtherVersions(&s, opts)
	if os.Geteuid() != 0 {
		s.Add(engine.PermissionDenied, fmt.Sprintf("running as uid %d", os.Geteuid()))
	} else if err := mayListPrograms(); err != nil {
		s.Add(engine.PermissionDenied, "root here may not use BPF, as it is root of a user namespace or lacks CAP_SYS_ADMIN: "+err.Error())
	}
	return s
}

// lookAtModules reads the list of active security modules: "bpf" has to be a whole entry of it.
func lookAtModules(s *engine.EnforcementStatus) {
	if !onFileSystem(lsmListPath, unix.SECURITYFS_MAGIC) {
		s.Add(engine.LSMListUnreadable, lsmListPath+" is not there or not on a securityfs")
		return
	}
	text, err := os.ReadFile(lsmListPath)
	if err != nil {
		s.Add(engine.LSMListUnreadable, err.Error())
		return
	}
	s.LSM = strings.Split(strings.TrimSpace(string(text)), ",")
	for _, name := range s.LSM {
		if name == "bpf" {
			return
		}
	}
	s.Add(engine.LSMInactive, fmt.Sprintf("%s says %s", lsmListPath, strings.Join(s.LSM, ",")))
}

// lookAtFtrace looks whether attached programs are called. Hooks and functions call them from places that ftrace patches,
// and where it is switched off it takes all those calls out again, of programs that stay attached and proven too: seen on
// Linux 6.1 and 6.12; 7 refuses to switch it off. A kernel without ftrace has no such setting, and BPF patches by itself.
func lookAtFtrace(s *engine.EnforcementStatus) {
	text, err := os.ReadFile(ftracePath)
	switch {
	case !onFileSystem(filepath.Dir(ftracePath), unix.PROC_SUPER_MAGIC):
		s.Add(engine.ProcfsUntrusted, filepath.Dir(ftracePath)+" is not there or not on a procfs")
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		s.Add(engine.FtraceOff, "whether it is cannot be found out: "+err.Error())
	case !onFileSystem(ftracePath, unix.PROC_SUPER_MAGIC):
		s.Add(engine.ProcfsUntrusted, ftracePath+" is not on a procfs")
	case strings.TrimSpace(string(text)) != "1":
		s.Add(engine.FtraceOff, fmt.Sprintf("%s says %s", ftracePath, strings.TrimSpace(string(text))))
	}
}

func lookAtMounts(s *engine.EnforcementStatus) {
	s.Mountinfo = "unavailable"
	table, err := mountmap.Read()
	switch {
	case errors.Is(err, mountmap.ErrMalformed):
		s.Mountinfo = "malformed"
		s.Add(engine.MountinfoMalformed, err.Error())
	case errors.Is(err, mountmap.ErrUntrusted):
		s.Add(engine.ProcfsUntrusted, err.Error())
	case err != nil:
		s.Add(engine.MountinfoUnavailable, err.Error())
	default:
		s.Mountinfo = "ok"
		if s.Cgroup.Mount = cgroupMount(table); s.Cgroup.Mount != "" {
			s.Cgroup.Version = 2
		}
	}
	if s.Cgroup.Version == 0 {
		s.Add(engine.CgroupV2Missing, "")
	}
	if !onFileSystem(bpffsPath, unix.BPF_FS_MAGIC) {
		s.Add(engine.BPFFSMissing, bpffsPath+" is not a BPF file system")
	}
}

// lookAtOtherVersions looks for what versions with another ABI have pinned. Their programs judge as well as long as their
// links are there, by maps that this build cannot read: so nobody could say what is in force.
func lookAtOtherVersions(s *engine.EnforcementStatus, opts Options) {
	dirs, err := opts.otherVersions()
	if err != nil {
		s.Add(engine.StalePins, "whether there are pins of other versions cannot be seen: "+err.Error())
	}
	for _, dir := range dirs {
		switch links, err := pinnedLinks(dir); {
		case err != nil:
			s.Add(engine.StalePins, "whether programs of another version are attached cannot be seen: "+err.Error())
		case links > 0:
			s.Add(engine.StalePins, fmt.Sprintf("%s holds attached programs (%d) of a version with another ABI, and maybe live jails: end those with that version", dir, links))
		default:
			s.Add(engine.OldPinsUnused, dir)
		}
	}
}

// pinnedLinks counts the attached programs of a pin folder, whatever version's and whatever they are called there.
func pinnedLinks(dir string) (int, error) {
	links := 0
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		is, err := isLink(path)
		if err != nil {
			return &fs.PathError{Op: "open pin", Path: path, Err: err}
		}
		if is {
			links++
		}
		return nil
	})
	return links, err
}

// otherVersions lists the pin folders of other ABIs. A process in a jail may not look; it is told where it is.
func (o Options) otherVersions() ([]string, error) {
	entries, err := os.ReadDir(o.PinRoot)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, entry := range entries {
		name := entry.Name()
		if strings.HasPrefix(name, "v") && name != filepath.Base(o.pins()) && name != filepath.Base(o.staging()) {
			dirs = append(dirs, filepath.Join(o.PinRoot, name))
		}
	}
	return dirs, nil
}

// cgroupMount finds the cgroup v2 hierarchy, alone or beside v1 (hybrid), that nothing else is mounted over.
func cgroupMount(table *mountmap.Table) string {
	for m := range table.All() {
		if m.FSType != "cgroup2" {
			continue
		}
		if top, ok := table.At(m.Point); ok && top.ID == m.ID && onFileSystem(m.Point, unix.CGROUP2_SUPER_MAGIC) {
			return m.Point
		}
	}
	return ""
}

// onFileSystem reports whether path is there and on a file system of that kind.
func onFileSystem(path string, magic int64) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && int64(st.Type) == magic
}

// lockdown reports whether the kernel forbids BPF to read its memory; see kernel_lockdown(7).
func lockdown() bool {
	text, err := os.ReadFile(lockdownPath)
	return err == nil && strings.Contains(string(text), "[confidentiality]")
}

// errnoNotSupported is the kernel-internal ENOTSUPP, which bpf(2) lets through and no header for programs names.
const errnoNotSupported = syscall.Errno(524)

// errHookMissing: the kernel has no such LSM hook or tracepoint, or was built without it.
var errHookMissing = errors.New("no such hook in this kernel")

// isVerifierError tells what the verifier has said something about from other errors of loading a program, which have
// the same type.
func isVerifierError(err error) bool {
	var verifier *ebpf.VerifierError
	return errors.As(err, &verifier) && len(verifier.Log) > 0
}

// reasonForLoad says which reason an error of loading or attaching is. An errno that nobody expects says that the kernel
// lacks something.
func reasonForLoad(err error) engine.EnforcementCode {
	switch {
	case isVerifierError(err):
		return engine.VerifierRejected
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.E2BIG):
		return engine.AttachBusy
	case errors.Is(err, fs.ErrPermission):
		return engine.PermissionDenied
	case errors.Is(err, errHookMissing):
		return engine.HookMissing
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, errnoNotSupported):
		return engine.AttachUnsupported
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.ENOMEM):
		return engine.MapFull
	default:
		return engine.KernelTooOld
	}
}
