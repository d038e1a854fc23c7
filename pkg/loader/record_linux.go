package loader

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// header is what the state directory says of a jail, but for its policy. It is small, as every command reads all of them,
// and but for the workspace it stays as it is as long as the jail lives.
type header struct {
	ID          string    `json:"id"`
	Name        string    `json:"name,omitempty"`
	Cgroup      string    `json:"cgroup"`
	CgroupID    uint64    `json:"cgroupId,string"`
	CreatedAt   time.Time `json:"createdAt"`
	Owner       *owner    `json:"owner,omitempty"`
	Contained   bool      `json:"contained,omitempty"` // the policy's paths are those below another root than the host's
	Workspace   string    `json:"workspace"`
	WorkspaceID string    `json:"workspaceId"`
	Grants      int       `json:"grants"`
	Digest      uint64    `json:"digest,string"` // of what the maps hold for the policy, see prepared
}

// policyRecord is a policy as it lies in the state directory: what is to be erased with it, and what "jail show" shows.
type policyRecord struct {
	Policy uint32        `json:"policy"` // its number in the kernel
	Grants []grantRecord `json:"grants"`
	Denied []string      `json:"denied,omitempty"`
}

type grantRecord struct {
	GrantInfo
	Dev   uint32          `json:"dev"`
	Open  bool            `json:"open,omitempty"`
	Value enforcerTfGrant `json:"value"` // as it was written to the maps
}

func (r *policyRecord) grants() []GrantInfo {
	grants := make([]GrantInfo, len(r.Grants))
	for i, g := range r.Grants {
		grants[i] = g.GrantInfo
		grants[i].dev, grants[i].open = g.Dev, g.Open
	}
	return grants
}

func recordOf(policy uint32, p *prepared) *policyRecord {
	r := &policyRecord{Policy: policy, Grants: make([]grantRecord, len(p.grants)), Denied: p.denied}
	for i, g := range p.grants {
		r.Grants[i] = grantRecord{GrantInfo: g, Dev: g.dev, Open: g.open, Value: p.values[i]}
	}
	return r
}

// owner is a process; with its start time the number cannot be taken for another one's.
type owner struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start,string"` // field 22 of proc_pid_stat(5)
}

func ownerOf(pid int) (*owner, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	// The name in field 2 may hold anything, but the last parenthesis ends it.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	const start = 22 - 3
	if len(fields) <= start {
		return nil, fmt.Errorf("read /proc/%d/stat: it is cut short", pid)
	}
	at, err := strconv.ParseUint(fields[start], 10, 64)
	return &owner{PID: pid, Start: at}, err
}

// isGone reports whether the process has ended. What cannot be found out counts as there.
func (o *owner) isGone() bool {
	now, err := ownerOf(o.PID)
	return errors.Is(err, fs.ErrNotExist) || err == nil && now.Start != o.Start
}

func (e *Enforcer) jailsDir() string { return filepath.Join(e.opts.StateDir, "jails") }

func (e *Enforcer) headerPath(id string) string { return filepath.Join(e.jailsDir(), id+".json") }

func (e *Enforcer) policyPath(id string) string {
	return filepath.Join(e.jailsDir(), id+".policy.json")
}

// replacingDir holds, while a policy is replaced, the one that comes. It is a folder of its own so that one look tells
// whether a replacement was cut short.
func (e *Enforcer) replacingDir() string { return filepath.Join(e.opts.StateDir, "replacing") }

func (e *Enforcer) replacingPath(id string) string {
	return filepath.Join(e.replacingDir(), id+".json")
}

// cachedHeader is a header with what tells whether its file is still the same.
type cachedHeader struct {
	header
	ino   uint64
	mtime unix.Timespec
}

// header gives what does not change about a jail: all but its workspace and its policy.
func (e *Enforcer) header(id uint64) (*header, error) {
	if c, ok := e.headers[id]; ok {
		return &c.header, nil
	}
	return e.freshHeader(id)
}

// freshHeader gives all of it as it is now.
func (e *Enforcer) freshHeader(id uint64) (*header, error) {
	path := e.headerPath(formatID(id))
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		delete(e.headers, id)
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if c, ok := e.headers[id]; ok && c.ino == st.Ino && c.mtime == st.Mtim {
		return &c.header, nil
	}
	c := &cachedHeader{ino: st.Ino, mtime: st.Mtim}
	if err := readJSON(path, &c.header); err != nil {
		return nil, err
	}
	if e.headers == nil || len(e.headers) > 2*len(e.jailSlots) {
		e.headers = map[uint64]*cachedHeader{}
	}
	e.headers[id] = c
	return &c.header, nil
}

func (e *Enforcer) writeHeader(h *header) error { return e.writeJSON(e.headerPath(h.ID), h) }

// readPolicy gives the policy that a jail has.
func (e *Enforcer) readPolicy(id string) (*policyRecord, error) {
	var r policyRecord
	return &r, readJSON(e.policyPath(id), &r)
}

// removeRecord removes all that says something of a jail.
func (e *Enforcer) removeRecord(id uint64) error {
	var errs []error
	for _, path := range []string{e.policyPath(formatID(id)), e.headerPath(formatID(id))} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	delete(e.headers, id)
	return errors.Join(errs...)
}

// writeJSON writes aside and renames: a reader finds all of it or what was there before. The caller holds the lock, so one
// place aside is enough, and collectFiles knows where a killed process left something.
func (e *Enforcer) writeJSON(path string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return bug(err.Error())
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(e.asidePath(), text, 0o600); err != nil {
		return err
	}
	return os.Rename(e.asidePath(), path)
}

func (e *Enforcer) asidePath() string { return filepath.Join(e.opts.StateDir, "aside.json") }

func readJSON(path string, value any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, value); err != nil {
		return &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return nil
}
