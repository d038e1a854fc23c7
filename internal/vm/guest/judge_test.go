package guest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
)

func TestJudge(t *testing.T) {
	plan := Plan{Programs: []Program{
		{Name: "pkg/a", GoTest: true, Want: []string{"TestOne", "TestTwo"}},
		{Name: "script"},
	}}
	good := func() *Record {
		return &Record{
			TaintBefore: 1 << 12, Taint: 1 << 12,
			Programs: []Result{
				{Name: "pkg/a", Tests: &Tests{Passed: 3, Finished: []string{"TestOne", "TestTwo"}}},
				{Name: "script"},
			},
		}
	}
	for _, c := range []struct {
		what    string
		change  func(*Record)
		console string
		want    []string
	}{
		{what: "all is well", console: "[    0.044000] tsc: Unable to calibrate against PIT\n"},
		{what: "init in trouble", change: func(r *Record) { r.Error = "mount: no" }, want: []string{"the guest's init: mount: no"}},
		{what: "a failed test", change: func(r *Record) {
			r.Programs[0].Exit = 1
			r.Programs[0].Tests = &Tests{Passed: 1, Failed: []string{"TestOne"}, Finished: []string{"TestTwo"}}
		}, want: []string{"pkg/a: failed: TestOne"}},
		{what: "a binary that fails without a failed test", change: func(r *Record) { r.Programs[0].Exit = 1 },
			want: []string{"pkg/a: exit status 1"}},
		{what: "a binary that panicked in a test", change: func(r *Record) {
			r.Programs[0].Exit = 2
			r.Programs[0].Tests.Failed = []string{"TestOne"}
		}, want: []string{"pkg/a: exit status 2", "pkg/a: failed: TestOne"}},
		{what: "a failed test in a binary that says it passed", change: func(r *Record) {
			r.Programs[0].Tests.Failed = []string{"TestOne/sub"}
		}, want: []string{"pkg/a: failed: TestOne/sub"}},
		{what: "a skipped test", change: func(r *Record) {
			r.Programs[0].Tests = &Tests{Passed: 1, Skipped: []string{"TestOne"}, Finished: []string{"TestTwo"}}
		}, want: []string{"pkg/a: skipped: TestOne"}},
		{what: "a binary that died", change: func(r *Record) {
			r.Programs[0].Tests = &Tests{Passed: 1, Unfinished: []string{"TestTwo"}, Finished: []string{"TestOne"}}
		}, want: []string{"pkg/a: ended in the middle of TestTwo"}},
		{what: "a test that did not run", change: func(r *Record) {
			r.Programs[0].Tests.Finished = []string{"TestTwo"}
		}, want: []string{"pkg/a: did not run: TestOne"}},
		{what: "nothing counted", change: func(r *Record) { r.Programs[0].Tests = nil }, want: []string{"pkg/a: no tests were counted"}},
		{what: "a script that failed", change: func(r *Record) { r.Programs[1].Exit = 7 }, want: []string{"script: exit status 7"}},
		{what: "a script that did not start", change: func(r *Record) {
			r.Programs[1].Exit, r.Programs[1].Error = 0, "no such file"
		}, want: []string{"script: no such file"}},
		{what: "a program missing", change: func(r *Record) { r.Programs = r.Programs[:1] }, want: []string{"script: did not run"}},
		{what: "another program's result", change: func(r *Record) { r.Programs[1].Name = "other" }, want: []string{"script: the record has the result of other in its place"}},
		{what: "a warning that did not reach the console", change: func(r *Record) { r.Taint |= 1 << 9 },
			want: []string{"the kernel is tainted: 0x1000 before the programs, 0x1200 after"}},
		{what: "a taint that was there before", change: func(r *Record) { r.TaintBefore, r.Taint = 1<<9, 1<<9 }},
		{what: "an unsigned module only", change: func(r *Record) { r.Taint |= 1 << 13 }},
		{what: "a warning on the console", console: "x\n[    1.0] WARNING: CPU: 0 PID: 7 at kernel/x.c:1 f+0x1/0x2\r\n",
			want: []string{"kernel log: [    1.0] WARNING: CPU: 0 PID: 7 at kernel/x.c:1 f+0x1/0x2"}},
	} {
		rec := good()
		if c.change != nil {
			c.change(rec)
		}
		if diff := gocmp.Diff(c.want, Judge(plan, rec, c.console)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", c.what, diff)
		}
	}
	if got := Judge(plan, nil, ""); len(got) != 1 || !strings.Contains(got[0], "without a result record") {
		t.Errorf("no record: %q", got)
	}
}

func TestJudgeWantsATest(t *testing.T) {
	plan := Plan{Programs: []Program{{Name: "pkg/a", GoTest: true}}}
	rec := &Record{Programs: []Result{{Name: "pkg/a", Tests: &Tests{}}}}
	if diff := gocmp.Diff([]string{"pkg/a: no test ran"}, Judge(plan, rec, "")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestTestTimeout(t *testing.T) {
	p := Plan{Limit: 10 * time.Minute}
	for up, want := range map[time.Duration]time.Duration{
		0:                9*time.Minute + 30*time.Second,
		5 * time.Minute:  4*time.Minute + 30*time.Second,
		10 * time.Minute: time.Second,
		time.Hour:        time.Second,
	} {
		if got := p.TestTimeout(up); got != want {
			t.Errorf("up for %s: %s, want %s", up, got, want)
		}
	}
	if got := (Plan{}).TestTimeout(time.Minute); got != time.Second {
		t.Errorf("without a limit: %s; 0 would be no timeout at all", got)
	}
}

// The first line of each kind of trouble as kernels print it.
func TestSplats(t *testing.T) {
	for _, line := range []string{
		"WARNING: CPU: 1 PID: 312 at kernel/bpf/trampoline.c:640 bpf_trampoline_unlink_prog+0x1a/0x40",
		"WARNING: kernel/bpf/trampoline.c:640 at bpf_trampoline_unlink_prog+0x1a/0x40, CPU#0: x/312", // since 6.19
		"WARNING: possible circular locking dependency detected",
		"WARNING: suspicious RCU usage",
		"BUG: kernel NULL pointer dereference, address: 0000000000000008",
		"BUG: unable to handle page fault for address: ffffffffc0",
		"BUG: sleeping function called from invalid context at mm/slab.h:1",
		"watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [x:1]",
		"kernel BUG at fs/inode.c:1!",
		"Oops: 0000 [#1] PREEMPT SMP NOPTI",
		"Oops: general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP NOPTI",
		"general protection fault, probably for non-canonical address 0xdead: 0000 [#1]",
		"int3: 0000 [#1] PREEMPT SMP NOPTI",
		"invalid opcode: 0000 [#1] SMP",
		"INFO: task x:12 blocked for more than 120 seconds.",
		"rcu: INFO: rcu_preempt self-detected stall on CPU",
		"rcu: INFO: rcu_sched detected stalls on CPUs/tasks:",
		"UBSAN: array-index-out-of-bounds in x.c:1:2",
		"refcount_t: underflow; use-after-free.",
		"Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100",
		" Call Trace:",
	} {
		if got := Splats("[    9.1] fine\n[   12.345678] " + line + "\n[   13.0] fine\n"); len(got) != 1 || !strings.Contains(got[0], strings.TrimSpace(line)) {
			t.Errorf("%q: found %q", line, got)
		}
	}
}

// console-*.txt are the logs, at the most talkative level, of guests in which
// nothing was wrong.
func TestNoSplatsInHealthyLogs(t *testing.T) {
	logs, err := filepath.Glob("testdata/console-*.txt")
	if err != nil || len(logs) != 3 {
		t.Fatalf("found %q, %v; want one for each kernel", logs, err)
	}
	for _, name := range logs {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if len(text) < 10_000 {
			t.Errorf("%s: only %d bytes", name, len(text))
		}
		if got := Splats(string(text)); len(got) != 0 {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestReports(t *testing.T) {
	for _, r := range []Report{
		{Started: &Started{Release: "6.1"}},
		{Resize: &Size{Rows: 3, Cols: 4}},
		{Record: &Record{Release: "7.3", LSM: "bpf", Programs: []Result{{Name: "x", Exit: 3, Tests: &Tests{Passed: 1}}}}},
	} {
		text, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if text[0] != '\n' || text[len(text)-1] != '\n' || strings.Count(string(text), "\n") != 2 {
			t.Errorf("%q is not a line of its own", text)
		}
		got, ok := DecodeReport([]byte(strings.TrimSpace(string(text))))
		if !ok {
			t.Errorf("%q: not decoded", text)
		}
		if diff := gocmp.Diff(r, got); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
	for _, line := range []string{"", "{", "{}", "noise", `{"record":`, `{"other":1}`, `["started"]`, `{"record":null}`} {
		if r, ok := DecodeReport([]byte(line)); ok {
			t.Errorf("%q was taken for %+v", line, r)
		}
	}
}

func FuzzDecodeReport(f *testing.F) {
	f.Add([]byte(`{"record":{"programs":[{"name":"x"}]}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		if r, ok := DecodeReport(line); ok && r.Started == nil && r.Record == nil && r.Resize == nil {
			t.Errorf("%q: an empty report", line)
		}
	})
}
