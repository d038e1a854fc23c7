package loader

import (
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"
)

// Event is the record of one verdict that denied, or in monitor mode would have.
type Event struct {
	Time   time.Time // UTC
	Jail   string    // 12 hex digits
	Cgroup uint64    // of the task
	PID    uint32    // in the initial pid namespace
	TID    uint32
	UID    uint32 // in the initial user namespace
	Comm   string // at most 15 bytes
	Hook   string // the kernel's name
	Op     string // in the engine's words
	Path   string // from the root of the task's mount namespace
	Device string // "major:minor" of the file system
	Inode  uint64 // 0 where the name did not exist yet
	Errno  string // what the caller got: "EACCES"
	Code   string // a stable token; see CodeReason
	Mode   string // "enforce" or "monitor"
	Count  uint64 // how many like it, 1 unless merged
}

type eventJSON struct {
	Time      time.Time `json:"time"`
	Jail      string    `json:"jail"`
	Cgroup    string    `json:"cgroup"`
	PID       uint32    `json:"pid"`
	TID       uint32    `json:"tid"`
	UID       uint32    `json:"uid"`
	Comm      string    `json:"comm"`
	CommBytes []byte    `json:"commBytes,omitempty"`
	Hook      string    `json:"hook"`
	Op        string    `json:"op"`
	Path      string    `json:"path"`
	PathBytes []byte    `json:"pathBytes,omitempty"`
	Device    string    `json:"device"`
	Inode     string    `json:"ino"`
	Errno     string    `json:"errno"`
	Code      string    `json:"code"`
	Mode      string    `json:"mode"`
	Count     uint64    `json:"count"`
}

// MarshalJSON writes 64-bit numbers as strings, and a path or comm that is not UTF-8 also as base64 of its bytes.
func (e Event) MarshalJSON() ([]byte, error) {
	j := eventJSON{
		Time: e.Time.UTC(), Jail: e.Jail, Cgroup: strconv.FormatUint(e.Cgroup, 10), PID: e.PID, TID: e.TID, UID: e.UID,
		Comm: e.Comm, Hook: e.Hook, Op: e.Op, Path: e.Path, Device: e.Device, Inode: strconv.FormatUint(e.Inode, 10),
		Errno: e.Errno, Code: e.Code, Mode: e.Mode, Count: e.Count,
	}
	if !utf8.ValidString(e.Path) {
		j.PathBytes = []byte(e.Path)
	}
	if !utf8.ValidString(e.Comm) {
		j.CommBytes = []byte(e.Comm)
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads what MarshalJSON wrote, byte for byte the same names.
func (e *Event) UnmarshalJSON(text []byte) error {
	var j eventJSON
	if err := json.Unmarshal(text, &j); err != nil {
		return err
	}
	cgroup, err := strconv.ParseUint(j.Cgroup, 10, 64)
	if err != nil {
		return err
	}
	inode, err := strconv.ParseUint(j.Inode, 10, 64)
	if err != nil {
		return err
	}
	*e = Event{
		Time: j.Time, Jail: j.Jail, Cgroup: cgroup, PID: j.PID, TID: j.TID, UID: j.UID, Comm: j.Comm, Hook: j.Hook,
		Op: j.Op, Path: j.Path, Device: j.Device, Inode: inode, Errno: j.Errno, Code: j.Code, Mode: j.Mode, Count: j.Count,
	}
	if j.PathBytes != nil {
		e.Path = string(j.PathBytes)
	}
	if j.CommBytes != nil {
		e.Comm = string(j.CommBytes)
	}
	return nil
}
