package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/loader"
	"golang.org/x/sys/unix"
)

// report is what --report writes: at the start with State "starting", and whole at the end.
type report struct {
	State       string            `json:"state,omitempty"`
	Jail        string            `json:"jail"`
	Policy      reportPolicy      `json:"policy"`
	Enforcement reportEnforcement `json:"enforcement"`
	Exit        *reportExit       `json:"exit,omitempty"`
	DurationMS  int64             `json:"durationMs"`
	Denials     []reportDenial    `json:"denials"`
	EventsLost  uint64            `json:"eventsLost"`
}

type reportPolicy struct {
	Workspace string        `json:"workspace"`
	Mode      string        `json:"mode"`
	Grants    []reportGrant `json:"grants"`
}

type reportGrant struct {
	Path   string        `json:"path"`
	Rights string        `json:"rights"`
	Source engine.Source `json:"source"`
}

type reportEnforcement struct {
	State   engine.EnforcementState    `json:"state"`
	Backend string                     `json:"backend"`
	Reasons []engine.EnforcementReason `json:"reasons"`
}

type reportExit struct {
	Code   int    `json:"code"`
	Signal string `json:"signal,omitempty"`
	From   string `json:"from"` // "command" or "thenforce"
}

// reportDenial is an event with the grant that would have allowed it.
type reportDenial struct {
	event   loader.Event
	suggest string
}

func (d reportDenial) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(d.event)
	if err != nil || d.suggest == "" {
		return text, err
	}
	suggest, err := json.Marshal(map[string]string{"grant": d.suggest})
	if err != nil {
		return nil, err
	}
	return append(append(text[:len(text)-1], `,"suggest":`...), append(suggest, '}')...), nil
}

// suggestion is the --grant that would allow an event, or "" where none does.
func suggestion(e loader.Event) string {
	if e.Code != "no-grant" && e.Code != "rights" || strings.HasPrefix(e.Path, "(") || strings.HasPrefix(e.Path, ".") {
		return ""
	}
	rights := map[string]string{
		"read": "ro", "exec": "rx", "write": "=rw", "attributes": "=rw", "create": "rw", "delete": "rw", "link": "rw", "rename": "rw",
	}[e.Op]
	path := e.Path
	if e.Op != "read" && e.Op != "write" && e.Op != "attributes" {
		path = filepath.Dir(path)
	}
	return path + ":" + rights
}

// writeReport replaces the report file, if one is wanted.
func (r *run) writeReport(out report) error {
	if r.flags.report == "" {
		return nil
	}
	if r.jail != nil {
		out.Jail = r.jail.ID
	}
	out.Policy = reportPolicy{Workspace: r.sets.Workspace.CanonicalRoot, Mode: r.sets.Mode.String(), Grants: []reportGrant{}}
	for _, o := range r.sets.Objects {
		out.Policy.Grants = append(out.Policy.Grants, reportGrant{o.Path, o.Rights.String(), o.Source})
	}
	out.Enforcement = reportEnforcement{r.status.State, r.status.Backend, r.status.Reasons}
	if out.Enforcement.Reasons == nil {
		out.Enforcement.Reasons = []engine.EnforcementReason{}
	}
	out.DurationMS = time.Since(r.started).Milliseconds()
	out.Denials = []reportDenial{}
	for _, e := range r.events {
		out.Denials = append(out.Denials, reportDenial{e, suggestion(e)})
	}
	text, err := json.Marshal(out)
	if err != nil {
		return err
	}
	if r.file == nil {
		if r.file, err = openReport(r.flags.report); err != nil {
			return fmt.Errorf("--report: %w", err)
		}
	}
	if err := r.file.write(append(text, '\n')); err != nil {
		return fmt.Errorf("--report: %w", err)
	}
	return nil
}

// reportFile is where the report goes. What it is was decided before the command ran: the command may be able to put
// something else there, a link or a pipe, and must not lead thenforce by that.
type reportFile struct {
	dir  *os.Root
	name string
	open *os.File // what cannot be replaced, such as a device or a pipe, is written to
}

func openReport(path string) (*reportFile, error) {
	if fi, err := os.Stat(path); err == nil && !fi.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		return &reportFile{open: f}, nil
	}
	// A link that was there before is the operator's: the file it leads to is replaced.
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		path = resolved
	}
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	return &reportFile{dir: dir, name: filepath.Base(path)}, nil
}

// write replaces the file so that a reader finds the old content or the new, and never a part. Names are taken in the
// directory that was opened, and none is followed.
func (r *reportFile) write(text []byte) error {
	if r.open != nil {
		_, err := r.open.Write(text)
		return err
	}
	aside := fmt.Sprintf(".%s.%d", r.name, os.Getpid())
	r.dir.Remove(aside)
	f, err := r.dir.OpenFile(aside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = r.dir.Rename(aside, r.name)
	}
	if err != nil {
		r.dir.Remove(aside)
	}
	return err
}

func signalName(sig syscall.Signal) string {
	if sig == 0 {
		return ""
	}
	return unix.SignalName(sig)
}
