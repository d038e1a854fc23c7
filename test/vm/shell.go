//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/thenforce/thenforce/internal/vm/guest"
)

// scriptPath is where a script lies in the guest.
const scriptPath = "/root/script"

func shell(ctx context.Context, args []string) error {
	var o options
	f := newFlags("shell", "[ARG ...]")
	series := f.String("kernel", "6.12", "kernel `series`")
	in := f.String("profile", profiles[0].name, "boot `profile`; see test/vm/profile.go")
	script := f.String("script", "", "shell script `FILE` to run; - is standard input")
	commands := f.String("c", "", "`commands` to run with sh")
	o.register(f, 0)
	if err := f.Parse(args); err != nil {
		return flagError(err)
	}
	o.finish()
	prof, err := findProfile(*in)
	if err != nil {
		return err
	}
	program, text, err := shellProgram(*script, *commands, f.Args())
	if err != nil {
		return err
	}
	if full := o.full || prof.full; full && program.Terminal != nil {
		program.Args[0] = "/bin/bash"
	}
	if o.timeout == 0 {
		o.timeout = 10 * time.Minute
		if program.Terminal != nil {
			o.timeout = 24 * time.Hour
		}
	}
	if err := needTools(o.full || prof.full); err != nil {
		return err
	}
	cache, kernels, err := openKernels(ctx, *series, false)
	if err != nil {
		return err
	}
	if len(kernels) != 1 {
		return errors.New("shell takes one kernel")
	}
	b, err := newBuilder(cache)
	if err != nil {
		return err
	}
	defer b.close()
	files, err := b.buildCommon(ctx)
	if err != nil {
		return err
	}
	files = append(files, added(o.add)...)
	if text != nil {
		name := filepath.Join(b.dir, "script")
		if err := os.WriteFile(name, text, 0o755); err != nil {
			return err
		}
		files = append(files, file{name, scriptPath})
	}
	g := guestRun{
		kernel: kernels[0], profile: prof, files: files, output: os.Stdout,
		plan: guest.Plan{Programs: []guest.Program{program}},
	}
	return b.shell(ctx, &o, g)
}

// shellProgram is what the flags ask for, with the text of a script.
func shellProgram(script, commands string, args []string) (guest.Program, []byte, error) {
	p := guest.Program{Name: "script", Dir: "/root", Args: append([]string{"/bin/sh", scriptPath}, args...)}
	switch {
	case script != "" && commands != "":
		return p, nil, errors.New("--script and -c exclude each other")
	case commands != "":
		p.Args = append([]string{"/bin/sh", "-c", commands}, args...)
		return p, nil, nil
	case script != "" && script != "-":
		text, err := os.ReadFile(script)
		return p, text, err
	case script == "-" || !term.IsTerminal(int(os.Stdin.Fd())):
		text, err := io.ReadAll(os.Stdin)
		return p, text, err
	}
	p.Args = []string{"/bin/sh", "-l"}
	p.Terminal = &guest.Size{Rows: 24, Cols: 80}
	if cols, rows, err := term.GetSize(int(os.Stdin.Fd())); err == nil {
		p.Terminal = &guest.Size{Rows: uint16(rows), Cols: uint16(cols)}
	}
	return p, nil, nil
}

// shell boots the guest and exits as its program did.
func (b *builder) shell(ctx context.Context, o *options, g guestRun) error {
	if g.plan.Programs[0].Terminal != nil {
		fmt.Fprintf(os.Stderr, "booting %s; Ctrl-A x ends the guest at once, \"exit\" properly\n", g.kernel.Release)
		var restore func()
		var err error
		if ctx, restore, err = attach(ctx, &g); err != nil {
			return err
		}
		defer restore()
	}
	out, err := b.boot(ctx, o, g)
	if errors.Is(context.Cause(ctx), errDetached) {
		return exitError(0)
	}
	if err != nil {
		return err
	}
	var trouble []string
	for _, r := range judge(g.plan, out) {
		// The exit status speaks for itself.
		if out.Record == nil || !strings.HasPrefix(r, g.plan.Programs[0].Name+": exit status") {
			trouble = append(trouble, r)
		}
	}
	if len(trouble) > 0 {
		fmt.Fprintf(os.Stderr, "vm: %s\r\nvm: the end of the kernel's log:\r\n%s\r\n", strings.Join(trouble, "\r\nvm: "), lastLines(out.Console, 25))
	}
	if out.Record != nil && len(out.Record.Programs) == 1 && out.Record.Programs[0].Exit != 0 {
		return exitError(out.Record.Programs[0].Exit)
	}
	if len(trouble) > 0 {
		return exitError(exitTrouble)
	}
	return nil
}

var errDetached = errors.New("the guest was ended from the keyboard")

// attach connects the terminal of the harness with the guest until restore is
// called.
func attach(ctx context.Context, g *guestRun) (context.Context, func(), error) {
	fd := int(os.Stdin.Fd())
	old, err := term.MakeRaw(fd)
	if err != nil {
		return nil, nil, fmt.Errorf("set the terminal to raw: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	g.input = &escapeReader{r: os.Stdin, escape: func() { cancel(errDetached) }}

	sizes := make(chan guest.Size, 1)
	g.resize = sizes
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, unix.SIGWINCH)
	go func() {
		for range changed {
			if cols, rows, err := term.GetSize(fd); err == nil {
				sizes <- guest.Size{Rows: uint16(rows), Cols: uint16(cols)}
			}
		}
	}()
	return ctx, func() {
		signal.Stop(changed)
		cancel(nil)
		term.Restore(fd, old)
	}, nil
}

// escapeReader passes on what is typed and takes out Ctrl-A: Ctrl-A x calls
// escape, Ctrl-A Ctrl-A is one Ctrl-A, anything else after it is passed on with
// it.
type escapeReader struct {
	r       io.Reader
	escape  func()
	pending bool
}

const ctrlA = 1

func (e *escapeReader) Read(p []byte) (int, error) {
	// One byte of room for a Ctrl-A held back from the read before.
	buf := make([]byte, max(len(p)/2, 1))
	for {
		n, err := e.r.Read(buf)
		out := p[:0]
		for _, c := range buf[:n] {
			switch {
			case !e.pending && c == ctrlA:
				e.pending = true
				continue
			case e.pending && c == 'x':
				e.escape()
				return len(out), io.EOF
			case e.pending && c != ctrlA:
				out = append(out, ctrlA)
			}
			e.pending = false
			out = append(out, c)
		}
		if len(out) > 0 || err != nil {
			return len(out), err
		}
	}
}
