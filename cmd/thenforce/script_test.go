// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/test/needs"
	"rsc.io/script"
	"rsc.io/script/scripttest"
)

// asCommand makes the test binary be the command.
const asCommand = "THENFORCE_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}

// self returns a call of the command under test.
func self(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "NO_COLOR=1")
	return cmd
}

// TestScripts runs testdata/script. Beyond the commands of rsc.io/script there are
//
//	thenforce CODE [<FILE] ARGS...     run the command, which has to end with the exit code
//	link NAME TARGET                   make a symbolic link
//	hardlink NAME FILE                 give a file another name
//	fifo NAME                          make a named pipe (unix)
//
// and the conditions verified: this host enforces, and wine: this is Windows as wine has it.
func TestScripts(t *testing.T) {
	status, err := currentStatus(false)
	if err != nil {
		t.Fatal(err)
	}
	e := script.NewEngine()
	e.Cmds["skip"] = scripttest.Skip() // as wine alone needs it: test/wine knows which
	e.Conds["verified"] = script.BoolCondition("this host enforces", status.State == engine.Verified)
	e.Conds["wine"] = script.BoolCondition("this is Windows as wine has it", needs.Wine())
	e.Cmds["thenforce"] = thenforceCommand(t)
	e.Cmds["link"] = pathCommand("make a symbolic link", "NAME TARGET", 2, func(path, target string) error {
		return os.Symlink(filepath.FromSlash(target), path)
	})
	e.Cmds["hardlink"] = pathCommand("give a file another name", "NAME FILE", 2, func(path, target string) error {
		return os.Link(filepath.Join(filepath.Dir(path), filepath.FromSlash(target)), path)
	})
	e.Cmds["fifo"] = pathCommand("make a named pipe", "NAME", 1, func(path, _ string) error { return makeFIFO(path) })

	env := append(os.Environ(), asCommand+"=1", "NO_COLOR=1")
	scripttest.Test(t, context.Background(), e, env, "testdata/script/*.txt")
}

func thenforceCommand(t *testing.T) script.Cmd {
	usage := script.CmdUsage{Summary: "run thenforce, which has to end with the exit code", Args: "code [<file] args..."}
	return script.Command(usage, func(s *script.State, args ...string) (script.WaitFunc, error) {
		if len(args) < 2 {
			return nil, script.ErrUsage
		}
		want, err := strconv.Atoi(args[0])
		if err != nil {
			return nil, script.ErrUsage
		}
		args = args[1:]
		cmd := self(t)
		cmd.Dir, cmd.Env = s.Getwd(), append(s.Environ(), "PWD="+s.Getwd())
		if file, ok := strings.CutPrefix(args[0], "<"); ok {
			input, err := os.ReadFile(s.Path(file))
			if err != nil {
				return nil, err
			}
			cmd.Stdin, args = bytes.NewReader(input), args[1:]
		}
		cmd.Args = append(cmd.Args, args...)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err = cmd.Run()
		if ended := (*exec.ExitError)(nil); err != nil && !errors.As(err, &ended) {
			return nil, err
		}
		return func(*script.State) (string, string, error) {
			if code := cmd.ProcessState.ExitCode(); code != want {
				return stdout.String(), stderr.String(), errors.New("exit code " + strconv.Itoa(code))
			}
			return stdout.String(), stderr.String(), nil
		}, nil
	})
}

func pathCommand(summary, args string, n int, do func(path, target string) error) script.Cmd {
	return script.Command(script.CmdUsage{Summary: summary, Args: args}, func(s *script.State, args ...string) (script.WaitFunc, error) {
		if len(args) != n {
			return nil, script.ErrUsage
		}
		return nil, do(s.Path(args[0]), args[n-1])
	})
}
