package supervise

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// state is what the probe found.
type state struct {
	Args    []string
	Env     []string
	Dir     string
	Fds     []int
	Status  map[string]string // Lines of /proc/self/status.
	Cgroup  string
	Pid     int
	Group   int
	MountNS string
}

// probe acts as the command: "probe VERB [ARG...]".
func probe(args []string) {
	verb := "state"
	if len(args) > 0 {
		verb = args[0]
	}
	switch verb {
	case "state": // Print everything as JSON.
		json.NewEncoder(os.Stdout).Encode(look())
	case "raw": // Put the terminal into raw mode and die without restoring it.
		if _, err := term.MakeRaw(0); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		unix.Kill(unix.Getpid(), unix.SIGKILL)
		time.Sleep(time.Minute)
	case "signals": // Print each signal; "ready" first, leave by SIGUSR2.
		ch := make(chan os.Signal, 64)
		signal.Notify(ch, unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH,
			unix.SIGCONT)
		fmt.Println("ready")
		for sig := range ch {
			fmt.Println(unix.SignalName(sig.(syscall.Signal)))
			if sig == unix.SIGUSR2 {
				os.Exit(0)
			}
		}
	case "leave": // Leave processes behind that are hard to get rid of, and exit with 7 once they are there.
		for _, kind := range args[1:] {
			child := exec.Command("/proc/self/exe", "stubborn", kind)
			child.Env = append(os.Environ(), partVar+"="+partProbe)
			child.SysProcAttr = &syscall.SysProcAttr{Setsid: kind != "group"}
			out, _ := child.StdoutPipe()
			if err := child.Start(); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			out.Read(make([]byte, 1))
			fmt.Println(child.Process.Pid)
		}
		os.Exit(7)
	case "stubborn":
		signal.Ignore(unix.SIGHUP)
		if args[1] != "polite" {
			signal.Ignore(unix.SIGTERM, unix.SIGINT)
		}
		if args[1] == "stopped" {
			defer unix.Kill(unix.Getpid(), unix.SIGSTOP)
		}
		if args[1] == "fork" {
			// The one that is known ends, another one goes on as a child of init.
			child := exec.Command("/proc/self/exe", "stubborn", "setsid")
			child.Env = append(os.Environ(), partVar+"="+partProbe)
			child.Stdout = os.Stdout
			child.Start()
			time.Sleep(10 * time.Millisecond)
			os.Exit(0)
		}
		fmt.Print(".")
		os.Stdout.Close()
		if args[1] != "stopped" {
			time.Sleep(time.Hour)
		}
	case "shell": // A shell without a prompt: run a command as a foreground job, and tell who has the terminal after a stop.
		job := exec.Command(args[1], args[2:]...)
		job.Stdin, job.Stdout, job.Stderr = os.Stdin, os.Stdout, os.Stderr
		job.SysProcAttr = &syscall.SysProcAttr{Foreground: true, Ctty: 0}
		if err := job.Start(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		var status unix.WaitStatus
		unix.Wait4(job.Process.Pid, &status, unix.WUNTRACED, nil)
		group, err := unix.IoctlGetInt(0, unix.TIOCGPGRP)
		signal.Ignore(unix.SIGTTOU)
		fmt.Println("stopped", status.Stopped(), "job has the terminal", group == job.Process.Pid, err)
		unix.Kill(-job.Process.Pid, unix.SIGTERM)
		unix.Kill(-job.Process.Pid, unix.SIGCONT)
		unix.Wait4(job.Process.Pid, &status, 0, nil)
	default:
		fmt.Println("unknown verb", verb)
		os.Exit(99)
	}
	os.Exit(0)
}

func look() state {
	s := state{Args: os.Args, Env: os.Environ(), Pid: os.Getpid(), Group: unix.Getpgrp(), Status: map[string]string{}}
	s.Dir, _ = os.Getwd()
	s.MountNS, _ = os.Readlink("/proc/self/ns/mnt")
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		s.Status[name] = strings.Join(strings.Fields(value), " ")
	}
	cgroups, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(cgroups)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			s.Cgroup = path
		}
	}
	// What Go opens for itself has close-on-exec, what was inherited has not.
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		fd, _ := strconv.Atoi(e.Name())
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			s.Fds = append(s.Fds, fd)
		}
	}
	slices.Sort(s.Fds)
	return s
}
