package main

import (
	"fmt"
	"os"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"github.com/thenforce/thenforce/internal/cgroup"
	"github.com/thenforce/thenforce/internal/supervise"
	"github.com/thenforce/thenforce/pkg/loader"
)

func (a *app) jailExecCommand() *cobra.Command {
	var (
		userName, dir string
		unverified    bool
	)
	cmd := &cobra.Command{
		Use:   "exec ID [flags] -- CMD [ARG...]",
		Short: "Run a command in a live jail",
		Long: `Run a command in a live jail: it is born in the jail's cgroup and judged from its
first instruction on. It starts in the jail's workspace and sees the host's
mounts: a private /tmp that run has made is not its own. When it ends, what it
has started stays in the jail.

Exit code: the command's own (128+n when signal n ended it); 125 when thenforce
itself failed, 126 when CMD cannot be executed, 127 when there is no such CMD.`,
		Example: `  thenforce jail exec build -- ls -l`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usage(fmt.Errorf("%s takes a jail and a command: %s", cmd.CommandPath(), cmd.UseLine()))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			result, err := a.execInJail(args[0], args[1:], userName, dir, unverified)
			if err != nil {
				return exit(supervise.ExitCode(err), err)
			}
			result.Exit()
			return nil
		},
	}
	cmd.Flags().StringVar(&userName, "user", "", "run as `NAME|UID[:GROUP|GID]`, with no other groups and no way to gain privileges")
	cmd.Flags().StringVar(&dir, "cwd", "", "working `DIR` (default: the jail's workspace)")
	cmd.Flags().BoolVar(&unverified, "allow-unverified", false, "go on where enforcement is not verified, and say so")
	return cmd
}

func (a *app) execInJail(ref string, args []string, userName, dir string, unverified bool) (supervise.Result, error) {
	var none supervise.Result
	enforcer, err := openVerified(unverified)
	if err != nil {
		return none, err
	}
	defer enforcer.Close()
	var user *supervise.User
	if userName != "" {
		if user, err = supervise.LookupUser(userName); err != nil {
			return none, err
		}
	}
	signals := supervise.CatchSignals()
	defer signals.Stop()
	var process *supervise.Process
	// Held until the command is there: else the jail might end in between, and the command would be in none.
	err = enforcer.Hold(ref, func(jail *loader.Jail) error {
		if jail.Contained {
			return fmt.Errorf("jail %s is a container's: only what its runtime starts in it is judged; use that (runc exec, podman exec)", jail.ID)
		}
		if dir == "" {
			dir = jail.Workspace
		}
		if err := supervise.CheckDirectories(user, dir, dir); err != nil {
			return err
		}
		group, err := cgroup.Open(jail.Cgroup)
		if err != nil {
			return err
		}
		defer group.Close()
		// The path may have been given to another cgroup since.
		if id, err := loader.CgroupID(group.File()); err != nil || id != jail.CgroupID {
			return fmt.Errorf("jail %s: its cgroup is not the one at %s any more (%v)", jail.ID, jail.Cgroup, err)
		}
		process, err = supervise.Start(supervise.Command{
			Args: args, Dir: dir, User: user, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
			Cgroup: group, SharedCgroup: true, Signals: signals,
		})
		return err
	})
	if err != nil {
		return none, err
	}
	result, err := process.Wait()
	if err != nil {
		logrus.Warn(err)
	}
	return result, nil
}
