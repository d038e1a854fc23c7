// SPDX-License-Identifier: Apache-2.0

//go:build unix

package engine

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A journal that has grown is begun anew with what is not over, and the former one kept beside it.
func TestJournalBeginsAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "expansions.journal")
	fill := func(activation Activation, size int64, grant, revoke int) (ids []string) {
		t.Helper()
		r, _, err := openRegistry(path, activation, size)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for i := range grant {
			x, err := r.Grant(ExpansionRequest{ResourceIdentity: "/w/a", WorkspaceID: "w", ActionClasses: []string{ActionReadFile}})
			if err != nil {
				t.Fatal(err)
			}
			if i < revoke {
				if ok, err := r.Revoke(x.ExpansionID); !ok || err != nil {
					t.Fatal(ok, err)
				}
				continue
			}
			ids = append(ids, x.ExpansionID)
		}
		return ids
	}
	held := func() (ids []string) {
		t.Helper()
		list, err := ReadExpansions(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range list {
			ids = append(ids, x.ExpansionID)
		}
		return ids
	}
	first := fill(Activation{"boot", "a"}, 1<<20, 3, 0)
	other := fill(Activation{"boot", "b"}, 1<<20, 2, 1)
	if got := fill(Activation{"boot", "a"}, 1, 0, 0); got != nil || len(held()) != 5 {
		t.Fatalf("begun anew though most of it holds: %q", held())
	}
	more := fill(Activation{"boot", "a"}, 1<<20, 4, 4)
	if len(more) != 0 {
		t.Fatal(more)
	}
	former, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	last := fill(Activation{"boot", "a"}, 1, 1, 0) // 4 of 9 are not over
	want := slices.Concat(first, other, last)
	if got := held(); !slices.Equal(got, want) {
		t.Errorf("holds %q, want %q", got, want)
	}
	if kept, err := os.ReadFile(path + ".1"); err != nil || !bytes.Equal(kept, former) {
		t.Errorf("the former one: %v", err)
	}
	if _, err := os.Stat(path + ".new"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	// After a reboot all is over.
	fill(Activation{"later", "a"}, 1, 0, 0)
	if got := held(); len(got) != 0 {
		t.Errorf("holds %q", got)
	}
	// Where it cannot be, all stays as it was.
	fill(Activation{"later", "a"}, 1<<20, 3, 3)
	if err := os.Mkdir(path+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new/x", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fill(Activation{"later", "a"}, 1, 1, 0)
	if got := held(); len(got) != 4 {
		t.Errorf("holds %q", got)
	}
}

// Of two who open a journal while a third begins it anew, nobody writes to the one that was put aside.
func TestJournalBeginsAnewUnderOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "expansions.journal")
	const writers, grants = 4, 50
	done := make(chan error, writers)
	for range writers {
		go func() {
			done <- func() error {
				for n := 0; n < grants; {
					r, _, err := openRegistry(path, Activation{"boot", "a"}, 500)
					if errors.Is(err, ErrJournalLocked) {
						continue
					}
					if err != nil {
						return err
					}
					x, err := r.Grant(ExpansionRequest{ResourceIdentity: "/w/a", WorkspaceID: "w"})
					if err == nil && n != grants-1 {
						_, err = r.Revoke(x.ExpansionID)
					}
					if err := errors.Join(err, r.Close()); err != nil {
						return err
					}
					n++
				}
				return nil
			}()
		}()
	}
	for range writers {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	list, err := ReadExpansions(path)
	if err != nil {
		t.Fatal(err)
	}
	live := 0
	for _, x := range list {
		if !x.Revoked {
			live++
		}
	}
	if live != writers {
		t.Errorf("%d of %d grants are there", live, writers)
	}
}
