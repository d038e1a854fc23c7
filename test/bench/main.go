//go:build linux

// Command bench measures thenforce in guests whose clock counts instructions: what it calls instructions is nanoseconds
// anywhere else. See docs/performance.md, and the targets of the Makefile whose names begin with bench-.
//
//	bench ops [-rounds N] [-jails N]
//	               in a guest: what one operation costs outside jails, in one, and under Landlock; JSON
//	bench jails [-jails N]
//	               in a guest: what jails cost to make, change, list and end while many others live, and their memory
//	bench startup  in a guest: what starting a command by "thenforce run" costs
//	bench jobs [-rounds N] [-job NAME]
//	               in a full guest: what whole jobs cost in no jail, in one, under Landlock and bubblewrap; table and JSON
//	bench report   anywhere: turns files of "bench ops" into tables and a plot
//	bench subject  the process that "bench ops" measures
//	bench timed, landlocked
//	               what "bench jobs" starts its commands by
//	bench now      prints the clock
package main

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

func main() {
	commands := map[string]func(args []string) error{
		"ops":        func(args []string) error { return measureOps(args, os.Stdout) },
		"jails":      func(args []string) error { return measureJails(args, os.Stdout) },
		"startup":    func([]string) error { return startup() },
		"jobs":       measureJobs,
		"timed":      timed,
		"landlocked": underLandlock,
		"report":     report,
		"subject": func(args []string) error {
			rounds, err := strconv.Atoi(args[0])
			if err != nil {
				return err
			}
			return subject(rounds, os.Stdin, os.Stdout)
		},
		"now": func([]string) error {
			_, err := fmt.Println(now())
			return err
		},
	}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: bench ops [-rounds N] [-jails N] | jails [-jails N] | startup | jobs [-rounds N] [-job NAME] | report [-svg FILE] FILE...")
		os.Exit(2)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}
