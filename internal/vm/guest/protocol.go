// Package guest is what the host and the guest's init say to each other.
//
// The host puts a Plan into the initramfs. The guest has three serial ports:
// the kernel console, the output of the programs as it comes, and the reports,
// one JSON object a line. The last report of a guest that went well is a
// Record; no other sign of success exists, because QEMU exits with 0 even
// after a panic.
//
// The package has no build constraint: all of it is tested without a guest.
package guest

import (
	"encoding/json"
	"fmt"
	"time"
)

// Where the files of the protocol lie in the guest.
const (
	PlanPath = "/etc/thenforce-vm/plan.json"

	ConsolePort = "/dev/ttyS0"
	OutputPort  = "/dev/ttyS1"
	ReportPort  = "/dev/ttyS2"
)

// Labels of the disks: device names change from boot to boot, so the guest
// finds its file systems by these.
const (
	ScratchLabel = "tf-scratch" // an empty ext4, mounted at /mnt/ext4
	RootLabel    = "tf-root"    // the Debian root of a full guest
	ModulesLabel = "tf-modules" // /usr/lib/modules of a full guest
	GoLabel      = "tf-go"      // /usr/local/go of a full guest
)

// Plan is what a guest is to do.
type Plan struct {
	// Full makes the guest change into the Debian root before anything runs.
	Full bool `json:"full,omitempty"`
	// Systemd makes systemd process 1 of a full guest; the plan runs as a service
	// once the system is up.
	Systemd bool `json:"systemd,omitempty"`
	// Modules are loaded in this order, from paths in the initramfs.
	Modules []string `json:"modules,omitempty"`
	// Idle is waited before the first program. Kernel threads share the one CPU of
	// an instruction-counting guest for about 20 s after boot.
	Idle time.Duration `json:"idle,omitempty"`
	// Limit is how long the guest may take. Test binaries get what is left of it,
	// less a little, so that one that hangs is stopped by its own watchdog and
	// says where it was.
	Limit time.Duration `json:"limit"`
	// Env is added to the environment of every program.
	Env []string `json:"env,omitempty"`
	// Programs run one after another, whatever becomes of those before.
	Programs []Program `json:"programs"`
}

// TestTimeout is the -test.timeout of a binary started when the guest has been
// up for the given time. It is never 0, which would mean none.
func (p Plan) TestTimeout(up time.Duration) time.Duration {
	return max(p.Limit-up-max(p.Limit/20, 2*time.Second), time.Second)
}

// Program is one thing to run in a guest.
type Program struct {
	// Name is what people know it by: a Go package, or "script".
	Name string   `json:"name"`
	Args []string `json:"args"`
	Dir  string   `json:"dir"`
	// GoTest says that the output is that of -test.v=test2json; it is counted.
	GoTest bool `json:"go_test,omitempty"`
	// Want names the top-level tests that must be seen to finish.
	Want []string `json:"want,omitempty"`
	// Terminal gives the program a terminal of its own, fed by the output port.
	Terminal *Size `json:"terminal,omitempty"`
}

// Size is that of a terminal in characters.
type Size struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Report is one line on the report port, either way; one field is set.
type Report struct {
	// Started is sent by init as soon as it runs, before it has done anything.
	Started *Started `json:"started,omitempty"`
	// Record is sent last.
	Record *Record `json:"record,omitempty"`
	// Resize goes from host to guest when the terminal changes.
	Resize *Size `json:"resize,omitempty"`
}

// Started proves that the kernel reached init.
type Started struct {
	Release string `json:"release"`
}

// Record is what came of a Plan.
type Record struct {
	Release string `json:"release"`
	// LSM is the kernel's list of active security modules.
	LSM string `json:"lsm"`
	// Error is set when init could not carry out the plan.
	Error    string   `json:"error,omitempty"`
	Programs []Result `json:"programs"`
	// TaintBefore and Taint are /proc/sys/kernel/tainted before the first
	// program and after the last.
	TaintBefore uint64 `json:"taint_before"`
	Taint       uint64 `json:"taint"`
}

// Result is what came of one Program.
type Result struct {
	Name string `json:"name"`
	// Exit is the exit status; 128 and the number of the signal that ended it.
	Exit int `json:"exit"`
	// Error is set when the program could not be started or waited for.
	Error   string        `json:"error,omitempty"`
	Tests   *Tests        `json:"tests,omitempty"`
	Elapsed time.Duration `json:"elapsed"`
}

// Encode returns the report as a line. The leading newline separates it from
// whatever a dying program may have written to the port.
func (r Report) Encode() ([]byte, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode report: %w", err)
	}
	return append(append([]byte{'\n'}, text...), '\n'), nil
}

// DecodeReport reads one line of the report port. ok is false for a line that
// is no report.
func DecodeReport(line []byte) (r Report, ok bool) {
	if len(line) == 0 || line[0] != '{' {
		return Report{}, false
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return Report{}, false
	}
	return r, r.Started != nil || r.Record != nil || r.Resize != nil
}
