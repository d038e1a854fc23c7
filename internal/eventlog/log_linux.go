// SPDX-License-Identifier: Apache-2.0

// Package eventlog keeps events on disk after they were taken out of the kernel's ring.
//
// The ring has one read position for everybody, so what one process takes no other can. Whoever wants to see events
// (run, events) therefore collects: under a lock it moves all that is in the ring to the log, and reads them there.
// While nobody collects, the kernel keeps the oldest 4 MiB or so and counts what finds no room: who collects then writes
// down how many they were.
//
// The log is two files of JSON lines, the newer and the older one. When the newer is full it becomes the older, and the
// one before is dropped, so the log never takes more than twice MaxFile bytes.
package eventlog

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/thenforce/thenforce/pkg/loader"
	"golang.org/x/sys/unix"
)

// Dir is where the log of the host lies.
const Dir = "/var/lib/thenforce"

// MaxFile is the size in bytes at which a file of the log is full.
const MaxFile = 16 << 20

const (
	newer = "events.jsonl"
	older = "events.1.jsonl"
	told  = "events.lost.json" // by jail, how many lost events the log tells of
)

// Log is the log in one directory.
type Log struct {
	dir     string
	options loader.Options
	maxFile int64
}

// New names the log in a directory, which is made when something is written.
func New(dir string, options loader.Options) *Log {
	return &Log{dir: dir, options: options, maxFile: MaxFile}
}

// Drain moves what is in the ring to the log and returns. Where the programs are not loaded there is nothing to move.
func (l *Log) Drain() error { return l.collect(context.Background(), false) }

// Collect drains until ctx is done, and then once more.
func (l *Log) Collect(ctx context.Context) error { return l.collect(ctx, true) }

func (l *Log) collect(ctx context.Context, wait bool) error {
	unlock, err := l.lock(ctx, wait)
	if err != nil {
		return err
	}
	defer unlock()
	ring, err := loader.OpenEvents(l.options)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer ring.Close()
	for wait && ctx.Err() == nil {
		_, err := l.take(ring, time.Now().Add(pause))
		if err := errors.Join(err, l.noteLosses(ring.Losses())); err != nil {
			return err
		}
	}
	// All that is there now, and not what comes meanwhile: in a flood that would never end.
	for start := time.Now(); ; {
		newest, err := l.take(ring, start)
		if err != nil || newest.IsZero() || newest.After(start) {
			return errors.Join(err, l.noteLosses(ring.Losses()))
		}
	}
}

// pause is how long a collector waits before it looks again whether it shall end.
const pause = 50 * time.Millisecond

// take moves what is in the ring, or a part of it, and gives the time of the newest event that it moved: none, where
// there was nothing until the deadline.
func (l *Log) take(ring *loader.EventReader, deadline time.Time) (newest time.Time, err error) {
	var lines bytes.Buffer
	for lines.Len() <= 1<<20 {
		event, err := ring.Read(deadline)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return newest, err
		}
		line, err := json.Marshal(event)
		if err != nil {
			return newest, err
		}
		lines.Write(append(line, '\n'))
		newest = event.Time
	}
	if lines.Len() == 0 {
		return newest, nil
	}
	return newest, l.append(lines.Bytes())
}

// Loss is a number of events of a jail that nobody can read: the ring was full.
type Loss struct {
	Time time.Time `json:"time"` // when it was noticed
	Jail string    `json:"jail"`
	Lost uint64    `json:"lost"`
}

// lossKey is in the lines of losses and in no others: within a string of JSON a quotation mark stands after a backslash.
const lossKey = `"lost":`

// noteLosses writes down what was lost since somebody did last. Who is killed meanwhile has it told twice rather than not.
func (l *Log) noteLosses(losses map[string]uint64) error {
	if len(losses) == 0 {
		return nil
	}
	path := filepath.Join(l.dir, told)
	before := map[string]uint64{}
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if json.Unmarshal(text, &before) != nil {
		clear(before) // damaged, or not there: all is told again
	}
	var lines bytes.Buffer
	for jail, lost := range losses {
		if lost <= before[jail] {
			continue
		}
		if err := json.NewEncoder(&lines).Encode(Loss{Time: time.Now().UTC(), Jail: jail, Lost: lost - before[jail]}); err != nil {
			return err
		}
	}
	if lines.Len() == 0 {
		return nil
	}
	if text, err = json.Marshal(losses); err != nil {
		return err
	}
	return errors.Join(l.append(lines.Bytes()), os.WriteFile(path+".new", text, 0o600), os.Rename(path+".new", path))
}

// lock makes this process the collector. When another one is, waiting for it is right for a caller that needs all
// events to be in the log: the other drains too, but may be about to stop.
func (l *Log) lock(ctx context.Context, wait bool) (func(), error) {
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(l.dir, "events.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	giveUp := time.Now().Add(5 * time.Second)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
		}
		if !wait && time.Now().After(giveUp) || ctx.Err() != nil {
			// Another collector is at work, and what is in the ring goes to the same log.
			f.Close()
			return nil, ErrBusy
		}
		time.Sleep(pause / 5)
	}
}

// ErrBusy says that another process collects. What it takes is in the log too.
var ErrBusy = errors.New("another process collects events")

func (l *Log) append(lines []byte) error {
	path := filepath.Join(l.dir, newer)
	if fi, err := os.Stat(path); err == nil && fi.Size() > 0 && fi.Size()+int64(len(lines)) > l.maxFile {
		if err := os.Rename(path, filepath.Join(l.dir, older)); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(lines)
	return errors.Join(err, f.Close())
}

// Filter says which events are wanted. The zero value wants all.
type Filter struct {
	Jail  string    // an id
	Since time.Time // not before
	Op    string    // as events have it; losses have none, and are given all the same
	Code  string    // likewise
}

func (f Filter) wants(jail string, at time.Time) bool {
	return (f.Jail == "" || f.Jail == jail) && !at.Before(f.Since)
}

func (f Filter) wantsEvent(e *loader.Event) bool {
	return f.wants(e.Jail, e.Time) && (f.Op == "" || f.Op == e.Op) && (f.Code == "" || f.Code == e.Code)
}

// Reader reads the log from its beginning on, and what is added later.
type Reader struct {
	// Lost, where it is set before the first Next, is given the losses in their places among the events.
	Lost func(Loss) error

	log    *Log
	filter Filter
	file   *os.File
	line   int
	rest   []byte // the beginning of a line whose end is not written yet
}

// Reader begins to read.
func (l *Log) Reader(filter Filter) *Reader { return &Reader{log: l, filter: filter} }

// Close lets go of the file that is read.
func (r *Reader) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

// Next gives every event that was added since the last call, in the order they were taken. A line that is damaged, by
// a full disk say, is an error that names it, and is passed over: the lines after it are given all the same.
func (r *Reader) Next(each func(loader.Event) error) error {
	var errs []error
	if r.file == nil {
		errs = append(errs, r.open(older))
	}
	for {
		if r.file != nil {
			err := r.drain(each)
			var stop *stopError
			if errors.As(err, &stop) {
				return stop.err
			}
			errs = append(errs, err)
		}
		changed, err := r.advance()
		if err != nil || !changed {
			return errors.Join(append(errs, err)...)
		}
	}
}

// advance goes on to the newer file when that is another than the one that was read to its end.
func (r *Reader) advance() (bool, error) {
	there, err := os.Stat(filepath.Join(r.log.dir, newer))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if r.file != nil {
		here, err := r.file.Stat()
		if err != nil {
			return false, err
		}
		if os.SameFile(here, there) {
			return false, nil
		}
	}
	return true, r.open(newer)
}

func (r *Reader) open(name string) error {
	f, err := os.Open(filepath.Join(r.log.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if r.file != nil {
		r.file.Close()
	}
	r.file, r.line, r.rest = f, 0, nil
	return nil
}

// stopError is an error of the caller's own function.
type stopError struct{ err error }

func (e *stopError) Error() string { return e.err.Error() }

func (r *Reader) drain(each func(loader.Event) error) error {
	in := bufio.NewReaderSize(r.file, 256<<10)
	var bad error
	for {
		part, err := in.ReadBytes('\n')
		r.rest = append(r.rest, part...)
		if errors.Is(err, io.EOF) {
			return bad
		}
		if err != nil {
			return errors.Join(bad, err)
		}
		r.line++
		damaged, err := r.give(each)
		if err != nil {
			return &stopError{err}
		}
		if damaged != nil {
			bad = errors.Join(bad, fmt.Errorf("%s:%d: %w", r.file.Name(), r.line, damaged))
		}
		r.rest = r.rest[:0]
	}
}

// give passes on the line that was read, if it is wanted.
func (r *Reader) give(each func(loader.Event) error) (damaged, err error) {
	if bytes.Contains(r.rest, []byte(lossKey)) {
		var l Loss
		if err := json.Unmarshal(r.rest, &l); err != nil {
			return err, nil
		}
		if r.Lost == nil || !r.filter.wants(l.Jail, l.Time) {
			return nil, nil
		}
		return nil, r.Lost(l)
	}
	var e loader.Event
	if err := json.Unmarshal(r.rest, &e); err != nil {
		return err, nil
	}
	if !r.filter.wantsEvent(&e) {
		return nil, nil
	}
	return nil, each(e)
}
