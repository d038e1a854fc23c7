package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"github.com/thenforce/thenforce/internal/eventlog"
	"github.com/thenforce/thenforce/pkg/loader"
)

func (a *app) eventsCommand() *cobra.Command {
	var (
		follow bool
		jail   string
		since  time.Duration
		op     string
		code   string
	)
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what was denied, and what would have been in monitor mode",
		Long: `Show what was denied, and what would have been in monitor mode.

Events wait in the kernel until a thenforce command takes them to the log in
` + eventlog.Dir + `, which keeps the newest 32 MiB. What finds the kernel's 4 MiB full is
lost and counted: a line says how many were (with --json {"time","lost"}), and
thenforce status. Somebody has to take them: a run does while its command runs, and
for other jails the service (systemctl enable --now thenforce) or this command,
left running with --follow.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			filter := eventlog.Filter{Op: op, Code: code}
			for _, f := range []struct {
				flag, value string
				known       []string
			}{{"op", op, loader.EventOps()}, {"code", code, loader.EventCodes()}} {
				if f.value != "" && !slices.Contains(f.known, f.value) {
					return usage(fmt.Errorf("--%s %q: use one of %s", f.flag, f.value, strings.Join(f.known, ", ")))
				}
			}
			if since > 0 {
				filter.Since = time.Now().Add(-since)
			}
			if jail != "" {
				filter.Jail = jail
				// An id of a jail that is gone is still good for looking at what it did.
				err := withJail(jail, func(_ *loader.Enforcer, j *loader.Jail) error {
					filter.Jail = j.ID
					return nil
				})
				if err != nil && len(jail) != 12 {
					return err
				}
			}
			return a.showEvents(filter, follow)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until interrupted")
	cmd.Flags().StringVar(&jail, "jail", "", "only of the jail with this `ID` or name")
	cmd.Flags().DurationVar(&since, "since", 0, "only of the last `TIME`, such as 10m")
	cmd.Flags().StringVar(&op, "op", "", "only of this kind: "+strings.Join(loader.EventOps(), ", "))
	cmd.Flags().StringVar(&code, "code", "", "only with this code: "+strings.Join(loader.EventCodes(), ", "))
	for flag, words := range map[string][]string{"op": loader.EventOps(), "code": loader.EventCodes()} {
		err := cmd.RegisterFlagCompletionFunc(flag, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return words, cobra.ShellCompDirectiveNoFileComp
		})
		if err != nil {
			panic(err) // the flag's name mistyped
		}
	}
	return cmd
}

// showEvents prints what the log holds and, when following, what comes.
func (a *app) showEvents(filter eventlog.Filter, follow bool) error {
	log := eventlog.New(eventlog.Dir, loader.Options{})
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	merge := merger{print: a.printEvent}
	reader := log.Reader(filter)
	reader.Lost = a.printLoss
	defer reader.Close()
	for {
		if err := log.Drain(); err != nil && !errors.Is(err, eventlog.ErrBusy) {
			return err
		}
		if err := reader.Next(merge.add); err != nil {
			return err
		}
		if !follow {
			return merge.flush()
		}
		if err := merge.flushBefore(time.Now().Add(-time.Second)); err != nil {
			return err
		}
		select {
		case <-stop:
			follow = false // once more, so that nothing from before the signal is missing
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// drainEvents moves what waits in the kernel to the log. Where another process is at it, that is as well.
func drainEvents(log *eventlog.Log) {
	if err := log.Drain(); err != nil && !errors.Is(err, eventlog.ErrBusy) {
		logrus.Warnf("events: %v", err)
	}
}

func (a *app) printLoss(l eventlog.Loss) error {
	if a.json {
		return printJSON(os.Stdout, struct {
			Time time.Time `json:"time"`
			Lost uint64    `json:"lost"`
		}{l.Time, l.Lost})
	}
	_, err := fmt.Printf("%s  %s  %s were lost: nobody read them in time\n", l.Time.Local().Format("15:04:05.000"), l.Jail, count(l.Lost, "event"))
	return err
}

func (a *app) printEvent(e loader.Event) error {
	if a.json {
		return printJSON(os.Stdout, e)
	}
	what := paint(os.Stdout, red, "denied")
	if e.Mode == "monitor" {
		what = paint(os.Stdout, yellow, "would deny")
	}
	times := ""
	if e.Count > 1 {
		times = fmt.Sprintf(" (%d times)", e.Count)
	}
	_, err := fmt.Printf("%s  %s  %s %s %s%s  %s[%d]  %s: %s, %s\n", e.Time.Local().Format("15:04:05.000"), e.Jail, what, e.Op,
		quoted(e.Path), times, quoted(e.Comm), e.PID, e.Errno, e.Code, loader.CodeReason(e.Code))
	return err
}

// merger makes one event of repeats within a second.
type merger struct {
	print   func(loader.Event) error
	pending []loader.Event
}

func same(a, b loader.Event) bool {
	a.Time, a.Count, a.TID = b.Time, b.Count, b.TID
	return a == b
}

func (m *merger) add(e loader.Event) error {
	if err := m.flushBefore(e.Time.Add(-time.Second)); err != nil {
		return err
	}
	for i := range m.pending {
		if same(m.pending[i], e) {
			m.pending[i].Count += e.Count
			return nil
		}
	}
	m.pending = append(m.pending, e)
	return nil
}

// flushBefore prints, in order, what can get no more repeats.
func (m *merger) flushBefore(t time.Time) error {
	for len(m.pending) > 0 && m.pending[0].Time.Before(t) {
		if err := m.print(m.pending[0]); err != nil {
			return err
		}
		m.pending = m.pending[1:]
	}
	return nil
}

func (m *merger) flush() error {
	for _, e := range m.pending {
		if err := m.print(e); err != nil {
			return err
		}
	}
	m.pending = nil
	return nil
}
