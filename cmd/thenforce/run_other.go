// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/fallback"
)

// What run exits with where the command did not start, as env(1) does.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// linuxFlags are what run takes on Linux and could only ignore here. To ignore a limit is to lie, so each is refused.
var linuxFlags = []string{
	"user", "name", "report", "fail-on-denial", "memory", "pids", "cpus", "timeout", "preserve-fds", "no-stdio-grants", "die-with-parent",
}

func (a *app) runCommand() *cobra.Command {
	var (
		flags      policyFlags
		dir        string
		unverified bool
	)
	cmd := &cobra.Command{
		Use:   "run [flags] [--] CMD [ARG...]",
		Short: "Start a command; this system cannot confine it",
		Long: `Start a command. This system has no kernel programs that would confine it, so run
refuses, unless --allow-unverified says to go on without. The policy is checked
for mistakes all the same.

Exit code: the command's own; 125 when thenforce did not start it, 126 when CMD
cannot be executed, 127 when there is no such CMD.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(fmt.Errorf("no command to run: %s", cmd.UseLine()))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range linuxFlags {
				if cmd.Flags().Changed(name) {
					return usage(fmt.Errorf("--%s needs Linux: nothing would come of it on %s; leave it out", name, runtime.GOOS))
				}
			}
			return runUnconfined(&flags, dir, unverified, args)
		},
	}
	cmd.Flags().SetInterspersed(false) // what follows CMD is CMD's
	flags.register(cmd)
	cmd.Flags().StringVar(&dir, "cwd", "", "working `DIR` (default: this one where it is granted, else the workspace)")
	cmd.Flags().BoolVar(&unverified, "allow-unverified", false, "go on where enforcement is not verified, and say so")
	for _, name := range linuxFlags {
		cmd.Flags().String(name, "", "")
		if err := cmd.Flags().MarkHidden(name); err != nil {
			panic(err) // a flag that was just made
		}
	}
	for _, name := range []string{"fail-on-denial", "no-stdio-grants", "die-with-parent"} {
		cmd.Flags().Lookup(name).NoOptDefVal = "true"
	}
	if err := cmd.MarkFlagDirname("cwd"); err != nil {
		panic(err)
	}
	return cmd
}

// runUnconfined starts a command and enforces nothing.
func runUnconfined(flags *policyFlags, dir string, unverified bool, args []string) error {
	policy, err := flags.policy()
	if err != nil {
		return err
	}
	if err := policy.refuseResources(); err != nil {
		return exit(exitOwn, err)
	}
	probes, err := fallback.NewProbes()
	if err != nil {
		return exit(exitOwn, err)
	}
	defer probes.Close()
	sets, err := policy.compile(probes)
	if err != nil {
		return exit(exitOwn, err)
	}
	for _, notice := range sets.Notices {
		logrus.Info(notice)
	}
	status, err := currentStatus(false)
	if err != nil {
		return exit(exitOwn, err)
	}
	if err := status.Err(); err != nil {
		if !unverified {
			return exit(exitOwn, fmt.Errorf("%w; --allow-unverified starts the command without any confinement", err))
		}
		logrus.Warnf("%v: the command is NOT confined", err)
	}
	if dir, err = startDir(dir, sets); err != nil {
		return exit(exitOwn, err)
	}
	// PATH and a relative CMD count from where the command starts.
	if err := os.Chdir(dir); err != nil {
		return exit(exitOwn, err)
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		code := exitNotFound
		if errors.Is(err, fs.ErrPermission) {
			code = exitNotExecutable
		}
		return exit(code, err)
	}
	code, err := execute(path, args)
	if err != nil {
		return exit(exitNotExecutable, err)
	}
	return exit(code, nil)
}

// startDir is where the command starts: the caller's directory where the policy covers it, else the workspace.
func startDir(flag string, sets engine.AllowedSets) (string, error) {
	if flag != "" {
		return filepath.Abs(flag)
	}
	here, err := os.Getwd()
	if err != nil {
		return sets.Workspace.CanonicalRoot, nil
	}
	for _, o := range sets.Objects {
		if _, err := engine.Resolve(o.Path, here); err == nil && o.Rights.Has(engine.Read) && o.Source != engine.SourcePreset {
			return here, nil
		}
	}
	return sets.Workspace.CanonicalRoot, nil
}
