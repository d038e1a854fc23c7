package eventlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/thenforce/thenforce/pkg/loader"
)

func event(n int) loader.Event {
	return loader.Event{Time: time.Unix(int64(n), 0).UTC(), Jail: "aaaaaaaaaaaa", Path: fmt.Sprintf("/%d", n), Count: 1}
}

func (l *Log) put(t *testing.T, numbers ...int) {
	t.Helper()
	var lines bytes.Buffer
	for _, n := range numbers {
		if err := json.NewEncoder(&lines).Encode(event(n)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.append(lines.Bytes()); err != nil {
		t.Fatal(err)
	}
}

func paths(t *testing.T, r *Reader) string {
	t.Helper()
	var got []string
	if err := r.Next(func(e loader.Event) error { got = append(got, e.Path[1:]); return nil }); err != nil {
		t.Fatal(err)
	}
	return strings.Join(got, " ")
}

func newLog(t *testing.T, maxFile int64) *Log {
	l := New(t.TempDir(), loader.Options{PinRoot: t.TempDir()})
	l.maxFile = maxFile
	return l
}

func TestReaderFollowsAcrossFiles(t *testing.T) {
	l := newLog(t, 700) // three events or so
	r := l.Reader(Filter{})
	defer r.Close()
	if got := paths(t, r); got != "" {
		t.Errorf("an empty log: %q", got)
	}
	for n := 1; n <= 40; n++ {
		l.put(t, n)
		if got, want := paths(t, r), fmt.Sprint(n); got != want {
			t.Fatalf("event %d: %q", n, got)
		}
	}
	// A reader that begins now sees what the two files hold, whole and in order.
	fresh := l.Reader(Filter{})
	defer fresh.Close()
	got := strings.Fields(paths(t, fresh))
	if len(got) < 3 || got[len(got)-1] != "40" {
		t.Fatalf("from the beginning: %v", got)
	}
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if fi, err := e.Info(); err != nil || fi.Size() > l.maxFile {
			t.Errorf("%s: %d bytes, %v", e.Name(), fi.Size(), err)
		}
	}
}

func TestReaderFilters(t *testing.T) {
	l := newLog(t, MaxFile)
	l.put(t, 1, 2, 3)
	if got := paths(t, l.Reader(Filter{Since: time.Unix(2, 0)})); got != "2 3" {
		t.Errorf("since: %q", got)
	}
	if got := paths(t, l.Reader(Filter{Jail: "bbbbbbbbbbbb"})); got != "" {
		t.Errorf("another jail: %q", got)
	}
	odd := event(4)
	odd.Op, odd.Code = "write", "rights"
	line, err := json.Marshal(odd)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.append(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
	for _, filter := range []Filter{{Op: "write"}, {Code: "rights"}, {Op: "write", Code: "rights"}} {
		if got := paths(t, l.Reader(filter)); got != "4" {
			t.Errorf("%+v: %q", filter, got)
		}
	}
	if got := paths(t, l.Reader(Filter{Op: "read", Code: "rights"})); got != "" {
		t.Errorf("another operation: %q", got)
	}
}

// A line that is not whole yet is waited for; one that is damaged is named, and the rest is read.
func TestReaderPartialAndDamagedLines(t *testing.T) {
	l := newLog(t, MaxFile)
	l.put(t, 1)
	r := l.Reader(Filter{})
	defer r.Close()
	paths(t, r)
	line, err := json.Marshal(event(2))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range [][]byte{line[:10], line[10:], []byte("\n{damaged\n")} {
		if err := l.append(part); err != nil {
			t.Fatal(err)
		}
		if part[0] == '\n' {
			break
		}
		if got := paths(t, r); got != "" {
			t.Fatalf("half a line: %q", got)
		}
	}
	l.put(t, 3)
	var got []string
	err = r.Next(func(e loader.Event) error { got = append(got, e.Path); return nil })
	if err == nil || !strings.Contains(err.Error(), filepath.Join(l.dir, newer)+":3:") {
		t.Errorf("damaged line: %v", err)
	}
	if strings.Join(got, "") != "/2/3" {
		t.Errorf("around it: %v", got)
	}
}

func TestReaderStops(t *testing.T) {
	l := newLog(t, MaxFile)
	l.put(t, 1, 2)
	stop := errors.New("enough")
	if err := l.Reader(Filter{}).Next(func(loader.Event) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
}

// Without programs in the kernel there is nothing to collect, and that is no error.
func TestDrainWithoutPrograms(t *testing.T) {
	if err := newLog(t, MaxFile).Drain(); err != nil {
		t.Error(err)
	}
}

func TestOneCollectorAtATime(t *testing.T) {
	l := newLog(t, MaxFile)
	unlock, err := l.lock(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	other := New(l.dir, l.options)
	done := make(chan error, 1)
	go func() { _, err := other.lock(t.Context(), false); done <- err }()
	if err := <-done; !errors.Is(err, ErrBusy) {
		t.Errorf("a second collector: %v", err)
	}
}

// Losses are told once, with what is new since, in their places among the events, and to who wants those of the jail.
func TestLosses(t *testing.T) {
	l := newLog(t, MaxFile)
	note := func(losses map[string]uint64) {
		t.Helper()
		if err := l.noteLosses(losses); err != nil {
			t.Fatal(err)
		}
	}
	tricky := event(1)
	tricky.Path = `/"lost":7`
	line, err := json.Marshal(tricky)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.append(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
	note(nil)
	note(map[string]uint64{"aaaaaaaaaaaa": 5})
	note(map[string]uint64{"aaaaaaaaaaaa": 5})
	l.put(t, 2)
	note(map[string]uint64{"aaaaaaaaaaaa": 7, "bbbbbbbbbbbb": 1})
	note(map[string]uint64{"bbbbbbbbbbbb": 1}) // the other jail is gone
	// What was told can be damaged: then it is told again, and not never.
	if err := os.WriteFile(filepath.Join(l.dir, told), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	note(map[string]uint64{"bbbbbbbbbbbb": 2})

	for jail, want := range map[string]string{"": `/"lost":7 a5 /2 a2 b1 b2`, "aaaaaaaaaaaa": `/"lost":7 a5 /2 a2`, "bbbbbbbbbbbb": "b1 b2"} {
		var got []string
		r := l.Reader(Filter{Jail: jail})
		r.Lost = func(l Loss) error { got = append(got, fmt.Sprint(l.Jail[:1], l.Lost)); return nil }
		if err := r.Next(func(e loader.Event) error { got = append(got, e.Path); return nil }); err != nil {
			t.Fatal(err)
		}
		r.Close()
		// Those of one moment come in no order.
		if got := strings.Replace(strings.Join(got, " "), "b1 a2", "a2 b1", 1); got != want {
			t.Errorf("of jail %q: %s, want %s", jail, got, want)
		}
	}
	if err := l.Reader(Filter{}).Next(func(loader.Event) error { return nil }); err != nil {
		t.Errorf("with nobody asking for losses: %v", err)
	}
}
