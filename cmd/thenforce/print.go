package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/term"
)

// printJSON writes one object on one line.
func printJSON(w io.Writer, value any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(value)
}

// paint colours text for a terminal that wants it; see no-color.org.
func paint(f *os.File, code, text string) string {
	if os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" || !term.IsTerminal(int(f.Fd())) {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

const (
	green  = "32"
	red    = "31"
	yellow = "33"
	bold   = "1"
)

func paintState(f *os.File, state engine.EnforcementState) string {
	if state == engine.Verified {
		return paint(f, green, state.String())
	}
	return paint(f, red, state.String())
}

// printStatus writes the status for people: the answer first, then why.
func printStatus(f *os.File, s engine.EnforcementStatus) error {
	fmt.Fprintf(f, "enforcement: %s\n", paintState(f, s.State))
	w := tabwriter.NewWriter(f, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "  kernel\t%s\n", s.Kernel)
	if len(s.LSM) > 0 {
		fmt.Fprintf(w, "  lsm\t%s\n", strings.Join(s.LSM, ","))
	}
	if s.Cgroup.Version != 0 {
		fmt.Fprintf(w, "  cgroup\tv%d at %s\n", s.Cgroup.Version, s.Cgroup.Mount)
	}
	attached, proven := 0, 0
	for _, h := range s.Hooks {
		if h.Attached {
			attached++
		}
		if h.Proven {
			proven++
		}
	}
	if len(s.Hooks) > 0 {
		fmt.Fprintf(w, "  programs\t%d of %d attached, %d proven\n", attached, len(s.Hooks), proven)
	}
	if s.Proof != nil {
		fmt.Fprintf(w, "  proof\teach denied what it must and allowed what it must, %s\n", s.Proof.Time.Local().Format("2006-01-02 15:04:05"))
	}
	if s.Pins != nil {
		fmt.Fprintf(w, "  pins\t%s\n", s.Pins.Path)
		fmt.Fprintf(w, "  jails\t%d\n", s.Jails)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, r := range s.Reasons {
		kind := paint(f, red, "reason")
		if !r.Blocking {
			kind = paint(f, yellow, "notice")
		}
		fmt.Fprintf(f, "  %s: %s: %s\n", kind, r.Code, r.Detail)
		if r.Fix != "" {
			fmt.Fprintf(f, "    fix: %s\n", r.Fix)
		}
	}
	return nil
}

// quoted makes a name that may hold anything safe to print on a line: no escape sequence of a terminal (C1 controls are
// such too), no other direction of writing, nothing that cannot be seen.
func quoted(text string) string {
	for _, r := range text {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return fmt.Sprintf("%q", text)
		}
	}
	return text
}
