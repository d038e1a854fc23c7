package engine

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// EnforcementState says whether a kernel enforces what the engine decided. Its zero value is unverified.
type EnforcementState uint8

const (
	// Unverified: at least one fact that enforcement rests on is missing or was not proven.
	Unverified EnforcementState = iota
	// Verified: every fact was checked and the canaries passed for exactly what is attached.
	Verified
)

func (s EnforcementState) String() string {
	if s == Verified {
		return "verified"
	}
	return "unverified"
}

// MarshalText gives the state's name.
func (s EnforcementState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText accepts the names that MarshalText gives.
func (s *EnforcementState) UnmarshalText(text []byte) error {
	switch string(text) {
	case "verified":
		*s = Verified
	case "unverified":
		*s = Unverified
	default:
		return fmt.Errorf("enforcement state %q is neither verified nor unverified", text)
	}
	return nil
}

// EnforcementCode names one fact that is missing. The codes are stable; new ones are added, none is ever renamed.
type EnforcementCode string

const (
	OSUnsupported        EnforcementCode = "os-unsupported"
	KernelTooOld         EnforcementCode = "kernel-too-old"
	BTFMissing           EnforcementCode = "btf-missing"
	LSMListUnreadable    EnforcementCode = "lsm-list-unreadable"
	LSMInactive          EnforcementCode = "lsm-inactive"
	PermissionDenied     EnforcementCode = "permission-denied"
	Lockdown             EnforcementCode = "lockdown"
	VerifierRejected     EnforcementCode = "verifier-rejected"
	HookMissing          EnforcementCode = "hook-missing"
	AttachBusy           EnforcementCode = "attach-busy"
	AttachUnsupported    EnforcementCode = "attach-unsupported"
	NotLoaded            EnforcementCode = "not-loaded"
	NotProven            EnforcementCode = "not-proven"
	LinkLost             EnforcementCode = "link-lost"
	CgroupV2Missing      EnforcementCode = "cgroup-v2-missing"
	CgroupUnresolvable   EnforcementCode = "cgroup-unresolvable"
	MountinfoUnavailable EnforcementCode = "mountinfo-unavailable"
	MountinfoMalformed   EnforcementCode = "mountinfo-malformed"
	ProcfsUntrusted      EnforcementCode = "procfs-untrusted"
	BPFFSMissing         EnforcementCode = "bpffs-missing"
	StalePins            EnforcementCode = "stale-pins"
	MapFull              EnforcementCode = "map-full"
	MapMismatch          EnforcementCode = "map-mismatch"
	DeviceUnobserved     EnforcementCode = "device-unobserved"
	DeviceAmbiguous      EnforcementCode = "device-ambiguous"
	CanaryFailed         EnforcementCode = "canary-failed"
	InsideJail           EnforcementCode = "inside-jail"
	UserspaceOnly        EnforcementCode = "userspace-only"
	EventsLost           EnforcementCode = "events-lost"
	OptionalHookMissing  EnforcementCode = "optional-hook-missing"
	OldPinsUnused        EnforcementCode = "old-pins-unused"
	FtraceOff            EnforcementCode = "ftrace-off"
)

// kernelCommandLine is the fix for a kernel that was booted without the BPF LSM. The list replaces the kernel's own, so
// the modules that are active now have to be named too: the commands take them from the kernel. /etc/default/grub is a
// shell script, so a line at its end adds to what is set before; entries of systemd-boot are made from /etc/kernel/cmdline,
// see kernel-install(8).
const kernelCommandLine = `add bpf to the kernel's list of security modules, as root, and reboot. ` +
	`Debian, Ubuntu: echo "GRUB_CMDLINE_LINUX=\"\$GRUB_CMDLINE_LINUX lsm=$(cat /sys/kernel/security/lsm),bpf\"" >>/etc/default/grub && update-grub; ` +
	`Fedora: grubby --update-kernel=ALL --args="lsm=$(cat /sys/kernel/security/lsm),bpf"; ` +
	`systemd-boot: sed -i "1s/$/ lsm=$(cat /sys/kernel/security/lsm),bpf/" /etc/kernel/cmdline && ` +
	`kernel-install add $(uname -r) $(ls /lib/modules/$(uname -r)/vmlinuz /boot/vmlinuz-$(uname -r))`

// meaning is what a code says wherever it appears.
type meaning struct {
	sentence string // without the detail
	fix      string // something to type or do; empty where there is nothing
	notice   bool   // may stand in a verified state
}

var meanings = map[EnforcementCode]meaning{
	OSUnsupported:        {sentence: "this operating system has no kernel enforcement", fix: "run thenforce on Linux with BPF LSM"},
	KernelTooOld:         {sentence: "the kernel lacks something that enforcement needs", fix: "boot Linux 6.1 or newer; on one that is, report this with the output of thenforce status --verify --json"},
	BTFMissing:           {sentence: "the kernel carries no BTF type information", fix: "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y"},
	LSMListUnreadable:    {sentence: "the list of active security modules cannot be read", fix: "mount -t securityfs securityfs /sys/kernel/security"},
	LSMInactive:          {sentence: "the BPF LSM is not active, so programs would load and never run", fix: kernelCommandLine},
	PermissionDenied:     {sentence: "this process lacks a privilege that enforcement needs", fix: "run thenforce as root in the initial user namespace (sudo thenforce ...), outside containers and seccomp filters that forbid bpf(2)"},
	Lockdown:             {sentence: "kernel lockdown forbids BPF programs to read kernel memory", fix: "boot with lockdown=integrity or without lockdown="},
	VerifierRejected:     {sentence: "the kernel's verifier refused a program", fix: "report this with the output of thenforce status --verify --log-level debug"},
	HookMissing:          {sentence: "a required hook does not exist in this kernel", fix: "boot a kernel built with CONFIG_BPF_LSM=y and CONFIG_SECURITY_PATH=y"},
	AttachBusy:           {sentence: "a hook already carries as many programs as the kernel takes", fix: "detach other BPF LSM programs (bpftool link list)"},
	AttachUnsupported:    {sentence: "the kernel cannot attach a program to a hook", fix: "boot a kernel with BPF trampolines for this architecture"},
	NotLoaded:            {sentence: "the programs are not loaded", fix: "thenforce status --verify"},
	NotProven:            {sentence: "nothing has proven that what is attached now denies", fix: "thenforce status --verify"},
	LinkLost:             {sentence: "a program is not attached any more", fix: "thenforce unload --force, then start the jails again"},
	CgroupV2Missing:      {sentence: "no cgroup v2 hierarchy is mounted", fix: "mount -t cgroup2 cgroup2 /sys/fs/cgroup"},
	CgroupUnresolvable:   {sentence: "a cgroup cannot be identified", fix: "run thenforce where the host's cgroup2 mount is visible"},
	MountinfoUnavailable: {sentence: "the mount table cannot be read", fix: "mount -t proc proc /proc"},
	MountinfoMalformed:   {sentence: "the mount table has a line that cannot be understood", fix: "report this with the content of /proc/self/mountinfo"},
	ProcfsUntrusted:      {sentence: "/proc is not a procfs", fix: "mount -t proc proc /proc"},
	BPFFSMissing:         {sentence: "no BPF file system is mounted to pin to", fix: "mount -t bpf bpf /sys/fs/bpf"},
	StalePins:            {sentence: "pinned objects of another build or of an unfinished start are in the way", fix: "thenforce unload --force"},
	MapFull:              {sentence: "a kernel map is full", fix: "delete jails that are not needed (thenforce jail list)"},
	MapMismatch:          {sentence: "a kernel map does not hold what was written", fix: "thenforce unload --force, then start the jails again"},
	DeviceUnobserved:     {sentence: "the kernel did not tell the identity of an object", fix: "leave the object out of the policy"},
	DeviceAmbiguous:      {sentence: "an object has no identity of its own on its file system", fix: "modprobe btrfs where it is on btrfs; grant the directory where it is a file of an overlay; or use another file system"},
	CanaryFailed:         {sentence: "a test operation was not judged as it must be", fix: "report this with the output of thenforce status --verify --json"},
	InsideJail:           {sentence: "this process is itself in a jail", fix: "run thenforce outside the jail"},
	UserspaceOnly:        {sentence: "only userspace checks are available", fix: "run thenforce on Linux with BPF LSM"},
	EventsLost:           {sentence: "events were lost because nobody read them in time", fix: "thenforce events --follow", notice: true},
	OptionalHookMissing:  {sentence: "what a hook guards does not exist here, or is forbidden to everybody", notice: true},
	OldPinsUnused:        {sentence: "pins of an older version lie unused", fix: "thenforce unload", notice: true},
	FtraceOff:            {sentence: "the kernel's ftrace is switched off, and no attached program is called", fix: "sysctl -w kernel.ftrace_enabled=1"},
}

// EnforcementReason is one fact that is missing, or a notice.
type EnforcementReason struct {
	Code     EnforcementCode `json:"code"`
	Blocking bool            `json:"blocking"`
	Detail   string          `json:"detail"`
	Fix      string          `json:"fix,omitempty"`
}

func (r EnforcementReason) String() string { return string(r.Code) + ": " + r.Detail }

// EnforcementCodes returns every code, sorted.
func EnforcementCodes() []EnforcementCode {
	return slices.Sorted(maps.Keys(meanings))
}

// NewReason makes the reason for a code. detail says what was seen; empty, the code's own sentence stands alone.
// A code that no table knows blocks.
func NewReason(code EnforcementCode, detail string) EnforcementReason {
	m := meanings[code]
	switch {
	case detail == "":
		detail = m.sentence
	case m.sentence != "":
		detail = m.sentence + ": " + detail
	}
	return EnforcementReason{Code: code, Blocking: !m.notice, Detail: detail, Fix: m.fix}
}

// UnverifiedError reports that something was refused because enforcement is not verified.
type UnverifiedError struct{ Reasons []EnforcementReason }

func (e *UnverifiedError) Error() string {
	for _, r := range e.Reasons {
		if r.Blocking {
			return "enforcement-unverified: " + r.String()
		}
	}
	return "enforcement-unverified"
}

// HookStatus is the state of one kernel hook.
type HookStatus struct {
	Name     string `json:"name"`
	Required bool   `json:"required"`
	Attached bool   `json:"attached"`
	Proven   bool   `json:"proven"`
	Runs     uint64 `json:"runs"` // verdicts made for jailed tasks since the programs were loaded
}

// EnforcementProof says what the last passed verification was about.
type EnforcementProof struct {
	BootID string    `json:"bootId"`
	ABI    int       `json:"abi"`
	Time   time.Time `json:"time"`
}

// CgroupStatus is the cgroup hierarchy in use; Version 0 means there is none.
type CgroupStatus struct {
	Version int    `json:"version"`
	Mount   string `json:"mount"`
}

// EventStatus counts what nobody can read any more.
type EventStatus struct {
	Lost uint64 `json:"lost"`
}

// PinStatus is where the kernel objects are kept.
type PinStatus struct {
	Path string `json:"path"`
	ABI  int    `json:"abi"`
}

// EnforcementStatus is the answer to "is it enforced right now". Only State counts as the answer; the rest is why.
type EnforcementStatus struct {
	State     EnforcementState    `json:"state"`
	Backend   string              `json:"backend"` // "bpf-lsm" or "userspace"
	Kernel    string              `json:"kernel"`
	LSM       []string            `json:"lsm"`
	BTF       bool                `json:"btf"`
	Cgroup    CgroupStatus        `json:"cgroup"`
	Mountinfo string              `json:"mountinfo"` // "ok", "unavailable" or "malformed"
	Reasons   []EnforcementReason `json:"reasons"`
	Hooks     []HookStatus        `json:"hooks"`
	Proof     *EnforcementProof   `json:"proof,omitempty"`
	Jails     int                 `json:"jails"`
	Events    EventStatus         `json:"events"`
	Pins      *PinStatus          `json:"pins,omitempty"`
}

// Add records a reason, once for each code and detail.
func (s *EnforcementStatus) Add(code EnforcementCode, detail string) {
	r := NewReason(code, detail)
	for _, have := range s.Reasons {
		if have == r {
			return
		}
	}
	s.Reasons = append(s.Reasons, r)
}

// Settle sets State from what was found: verified needs a proof and no blocking reason. It is the only place that
// ever says verified.
func (s *EnforcementStatus) Settle() {
	s.State = Unverified
	for _, r := range s.Reasons {
		if r.Blocking {
			return
		}
	}
	if s.Proof == nil {
		s.Add(NotProven, "")
		return
	}
	s.State = Verified
}

// Err is nil where the state is verified, else an *UnverifiedError.
func (s *EnforcementStatus) Err() error {
	if s.State == Verified {
		return nil
	}
	return &UnverifiedError{Reasons: s.Reasons}
}

// Blocking gives the codes of the blocking reasons, in the order found.
func (s *EnforcementStatus) Blocking() []EnforcementCode {
	var codes []EnforcementCode
	for _, r := range s.Reasons {
		if r.Blocking {
			codes = append(codes, r.Code)
		}
	}
	return codes
}
