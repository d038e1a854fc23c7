//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

const starts = 15

// startup compares starting a command with starting it by thenforce run: from before the start to the command's main, and
// to the end of everything. By the clock that is with the time that the guest idles, as in a grace period of RCU; what was
// executed is what the scheduler says that tasks ran.
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
		if _, err := once(k.args); err != nil {
			return err
		}
	}
	fmt.Printf("%-30s %15s %15s %15s %15s   (instructions, median of %d)\n",
		"", "to its main", "executed", "to the end", "executed", starts)
	for _, k := range kinds {
		var all [4][]int64
		for range starts {
			cost, err := once(k.args)
			if err != nil {
				return err
			}
			for i, c := range cost {
				all[i] = append(all[i], c)
			}
		}
		fmt.Printf("%-30s %15d %15d %15d %15d\n", k.name, median(all[0]), median(all[1]), median(all[2]), median(all[3]))
	}
	return nil
}

// once starts a command that says when its main began, and gives: to its main, executed to there, to the end, executed.
func once(args []string) (cost [4]int64, err error) {
	cmd := exec.Command(args[0], args[1:]...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return cost, err
	}
	ranBefore, err := ran()
	if err != nil {
		return cost, err
	}
	start := now()
	if err := cmd.Start(); err != nil {
		return cost, err
	}
	text := make([]byte, 64)
	n, err := out.Read(text)
	if err != nil && err != io.EOF { // EOF: it has nothing to say
		return cost, err
	}
	ranThen, err := ran()
	if err != nil {
		return cost, err
	}
	if err := cmd.Wait(); err != nil {
		return cost, fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	end := now()
	ranAtLast, err := ran()
	if at, bad := strconv.ParseInt(strings.TrimSpace(string(text[:n])), 10, 64); bad == nil {
		cost[0], cost[1] = at-start, ranThen-ranBefore
	}
	cost[2], cost[3] = end-start, ranAtLast-ranBefore
	return cost, err
}

// ran is how long tasks ran on the guest's CPU, in nanoseconds: the seventh number of /proc/schedstat
// (Documentation/scheduler/sched-stats.rst).
func ran() (int64, error) {
	text, err := os.ReadFile("/proc/schedstat")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 7 && fields[0] == "cpu0" {
			return strconv.ParseInt(fields[7], 10, 64)
		}
	}
	return 0, errors.New("/proc/schedstat says nothing of cpu0")
}

// spent is what a process and its children executed. The kernel splits it by ticks into user's and system's, but the sum
// is that of the scheduler's clock (cputime_adjust of kernel/sched/cputime.c).
func spent(state *os.ProcessState) int64 { return int64(state.UserTime() + state.SystemTime()) }

func median(v []int64) int64 {
	slices.Sort(v)
	return v[len(v)/2]
}
