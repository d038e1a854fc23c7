//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

const starts = 15

// startup compares starting a command with starting it by thenforce run: from before the start to the command's main,
// and to the end of everything, both with the time that the guest idles, as in a grace period of RCU, and what was executed.
func startup() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll("/w", 0o755); err != nil {
		return err
	}
	run := []string{"thenforce", "run", "--grant", self + ":rx", "--workspace", "/w"}
	kinds := []struct {
		name string
		args []string
	}{
		{"exec", []string{self, "now"}},
		{"thenforce --version", []string{"thenforce", "--version"}},
		{"thenforce run", append(slices.Clone(run), "--", self, "now")},
		{"thenforce run --preset none", append(slices.Clone(run), "--preset", "none", "--", self, "now")},
	}
	for _, k := range kinds { // the first run loads and proves
		if _, _, _, err := once(k.args); err != nil {
			return err
		}
	}
	fmt.Printf("%-30s %15s %15s %15s   (instructions, median of %d)\n", "", "to its main", "to the end", "executed", starts)
	for _, k := range kinds {
		var begin, end, executed []int64
		for range starts {
			b, e, x, err := once(k.args)
			if err != nil {
				return err
			}
			begin, end, executed = append(begin, b), append(end, e), append(executed, x)
		}
		fmt.Printf("%-30s %15d %15d %15d\n", k.name, median(begin), median(end), median(executed))
	}
	return nil
}

func once(args []string) (begin, end, executed int64, err error) {
	cmd := exec.Command(args[0], args[1:]...)
	start := now()
	out, err := cmd.Output()
	end = now() - start
	if err != nil {
		return 0, 0, 0, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	if at, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64); err == nil {
		begin = at - start
	}
	return begin, end, spent(cmd.ProcessState), nil
}

// spent is what a process and its children executed. The kernel splits it by ticks into user's and system's, but the sum
// is that of the scheduler's clock (cputime_adjust of kernel/sched/cputime.c).
func spent(state *os.ProcessState) int64 { return int64(state.UserTime() + state.SystemTime()) }

func median(v []int64) int64 {
	slices.Sort(v)
	return v[len(v)/2]
}
