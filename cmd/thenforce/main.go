// SPDX-License-Identifier: Apache-2.0

// Command thenforce confines a command, a cgroup or a container to a workspace, by the kernel.
//
// This package parses, calls, prints and gives exit codes; decisions are made in pkg/engine and pkg/loader.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
)

// Exit codes of every command but run, whose code is its command's own.
const (
	exitFailure    = 1
	exitUsage      = 2
	exitDenied     = 3
	exitConflict   = 4
	exitUnverified = 5
	// exitOwn is what run exits with where thenforce itself, and not the command, failed.
	exitOwn = 125
)

// exitError ends the program with a code. Without an error nothing more is printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func exit(code int, err error) error { return &exitError{code, err} }

// usage marks an error as one of how the command was called.
func usage(err error) error {
	if err == nil {
		return nil
	}
	return exit(exitUsage, err)
}

func main() {
	app := newApp(os.Args[1:])
	os.Exit(app.execute(os.Args[1:]))
}

// app is what the flags that every command has amount to.
type app struct {
	root  *cobra.Command
	json  bool
	quiet bool
	level string
	form  string
}

// extra are commands of builds with tags.
var extra []func(*app) *cobra.Command

// newApp makes the program for a command line. Where its first word is a command, that one is all it has: to make all of
// them, with their flags, is a good part of what starting one costs.
func newApp(args []string) *app {
	a := &app{}
	a.root = &cobra.Command{
		Use:   "thenforce",
		Short: "Confine processes to a workspace, by the kernel",
		Long: `thenforce confines a command or a cgroup to a workspace: the Linux kernel denies
every file operation that leaves it. Where enforcement cannot be proven,
thenforce says "unverified" and starts nothing.

Try it:  thenforce run --workspace . -- sh`,
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return usage(a.setUpLog())
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	a.root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage(fmt.Errorf("%w (%s --help lists the flags)", err, cmd.CommandPath()))
	})
	flags := a.root.PersistentFlags()
	flags.BoolVar(&a.json, "json", false, "print JSON, one object a line")
	flags.BoolVarP(&a.quiet, "quiet", "q", false, "print nothing but data and errors")
	flags.StringVar(&a.level, "log-level", "warning", "least level of messages: error, warning, info or debug")
	flags.StringVar(&a.form, "log-format", "text", "form of messages on stderr: text or json")
	commands := a.commands()
	if len(args) > 0 && commands[args[0]] != nil {
		a.root.AddCommand(commands[args[0]]())
		a.root.CompletionOptions.DisableDefaultCmd = true
		return a
	}
	for _, command := range commands {
		a.root.AddCommand(command()) // sorted by name where they are listed
	}
	for _, command := range extra {
		a.root.AddCommand(command(a))
	}
	return a
}

// execute runs the program and says with which code to end it.
func (a *app) execute(args []string) int {
	a.root.SetArgs(args)
	cmd, err := a.root.ExecuteC()
	if err == nil {
		return 0
	}
	code := exitFailure
	var known *exitError
	if errors.As(err, &known) {
		code = known.code
		if known.err == nil {
			return code
		}
	} else if cmd == a.root {
		code = exitUsage // an unknown command, or arguments where none belong
	}
	if (cmd.Name() == "run" || cmd.Name() == "exec") && code <= exitUsage {
		code = exitOwn
	}
	a.complain(err)
	return code
}

// complain prints an error as one line, or as a log record where the log is JSON.
func (a *app) complain(err error) {
	if a.form == "json" {
		logrus.Error(err)
		return
	}
	fmt.Fprintf(os.Stderr, "thenforce: %v\n", err)
}

func (a *app) setUpLog() error {
	level, err := logrus.ParseLevel(a.level)
	if err != nil {
		return fmt.Errorf("--log-level %q: use error, warning, info or debug", a.level)
	}
	logrus.SetLevel(level)
	logrus.SetOutput(os.Stderr)
	switch a.form {
	case "text":
		logrus.SetFormatter(plainFormatter{})
	case "json":
		logrus.SetFormatter(&logrus.JSONFormatter{})
	default:
		return fmt.Errorf("--log-format %q: use text or json", a.form)
	}
	if a.quiet && level > logrus.ErrorLevel {
		logrus.SetLevel(logrus.ErrorLevel)
	}
	return nil
}

// plainFormatter writes messages in the form of every other line of thenforce.
type plainFormatter struct{}

func (plainFormatter) Format(e *logrus.Entry) ([]byte, error) {
	line := "thenforce: "
	if e.Level <= logrus.WarnLevel {
		line += e.Level.String() + ": "
	}
	line += e.Message
	for key, value := range e.Data {
		line += fmt.Sprintf(" %s=%v", key, value)
	}
	return []byte(line + "\n"), nil
}

// version is the module's version, or the commit it was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && (v == "" || v == "(devel)") && len(s.Value) >= 12 {
			v = s.Value[:12]
		}
	}
	return v
}
