package guest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Judge returns every reason why a guest's run is a failure; none means that
// it was a success. rec is nil when no record arrived; console is the kernel's
// log.
func Judge(plan Plan, rec *Record, console string) []string {
	var why []string
	fail := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }

	for _, line := range Splats(console) {
		fail("kernel log: %s", line)
	}
	if rec == nil {
		fail("the guest ended without a result record")
		return why
	}
	if rec.Error != "" {
		fail("the guest's init: %s", rec.Error)
	}
	if bits := rec.Taint &^ rec.TaintBefore & splatTaint; bits != 0 {
		fail("the kernel is tainted: %#x before the programs, %#x after", rec.TaintBefore, rec.Taint)
	}
	for i, p := range plan.Programs {
		if i >= len(rec.Programs) {
			fail("%s: did not run", p.Name)
			continue
		}
		r := rec.Programs[i]
		if r.Name != p.Name {
			fail("%s: the record has the result of %s in its place", p.Name, r.Name)
			continue
		}
		switch {
		case r.Error != "":
			fail("%s: %s", p.Name, r.Error)
		case r.Exit == 1 && p.GoTest && r.Tests != nil && len(r.Tests.Failed) > 0:
			// What a test binary does after a failed test, which is named below.
		case r.Exit != 0:
			fail("%s: exit status %d", p.Name, r.Exit)
		}
		if p.GoTest {
			for _, f := range judgeTests(p, r) {
				fail("%s: %s", p.Name, f)
			}
		}
	}
	return why
}

func judgeTests(p Program, r Result) []string {
	if r.Tests == nil {
		return []string{"no tests were counted"}
	}
	var why []string
	for _, n := range r.Tests.Failed {
		why = append(why, "failed: "+n)
	}
	// A skip in a guest is a failure: what a test needs, the guest must have.
	for _, n := range r.Tests.Skipped {
		why = append(why, "skipped: "+n)
	}
	for _, n := range r.Tests.Unfinished {
		why = append(why, "ended in the middle of "+n)
	}
	for _, n := range p.Want {
		if !slices.Contains(r.Tests.Finished, n) && !slices.Contains(r.Tests.Failed, n) &&
			!slices.Contains(r.Tests.Skipped, n) && !slices.Contains(r.Tests.Unfinished, n) {
			why = append(why, "did not run: "+n)
		}
	}
	if r.Tests.Passed == 0 && len(why) == 0 {
		why = append(why, "no test ran")
	}
	return why
}

// splatTaint are the bits of /proc/sys/kernel/tainted that a test can cause
// and must not: bad page (5), oops (7), warning (9), soft lockup (14). See
// Documentation/admin-guide/tainted-kernels.rst.
const splatTaint = 1<<5 | 1<<7 | 1<<9 | 1<<14

// splat matches the first lines of what the kernel prints when it finds
// itself broken.
var splat = regexp.MustCompile(`(?m)^.*(?:` + strings.Join([]string{
	`BUG: `, `kernel BUG at `, `WARNING: (?:CPU|possible|suspicious|inconsistent|at |\S+/\S+\.[ch]:)`, `Oops: `, `Oops\[`, `general protection fault`,
	`Kernel panic - not syncing`, `unable to handle `, `INFO: task \S+ blocked for`, `rcu: INFO: rcu_\S+ (?:self-)?detected`,
	`watchdog: BUG`, `UBSAN: `, `KASAN: `, `refcount_t: `, `invalid opcode: `, `int3: `, `stack segment: `, `double fault: `,
	`Call Trace:`,
}, `|`) + `).*$`)

// Splats returns the lines of a kernel log that tell of an oops, a warning, a
// BUG, a lockup or a panic.
func Splats(console string) []string {
	var out []string
	for _, line := range splat.FindAllString(console, -1) {
		out = append(out, strings.TrimSpace(line))
	}
	return out
}
