//go:build vm

package loader

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// attempt runs thenforce with something else going on. Its error says what it said.
func attempt(args ...string) (string, error) {
	var stderr strings.Builder
	cmd := exec.Command("thenforce", args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("thenforce %s: %w: %s%s", strings.Join(args, " "), err, stderr.String(), out)
	}
	return strings.TrimSpace(string(out)), err
}

// Twenty commands at once, chosen at random: every one of them comes to what it would have come to alone, a jail holds all
// the while, and nothing is left.
func TestTwentyCommandsAtOnce(t *testing.T) {
	const many = 20
	random := seeded(t)
	w := newKilling(t)
	for i := range many {
		for _, dir := range []string{fmt.Sprintf("%s/work/dist-%d", w.base, i), fmt.Sprintf("/sys/fs/cgroup/at-once-%d", i)} {
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() {
			if err := removeCgroup(fmt.Sprintf("/sys/fs/cgroup/at-once-%d", i)); err != nil {
				t.Error(err)
			}
		})
	}
	before := w.leftovers()
	plain := func(args ...string) func(int) error {
		return func(int) error {
			_, err := attempt(args...)
			return err
		}
	}
	commands := []func(i int) error{
		plain("run", "--workspace", w.base+"/run", "--", "true"),
		plain("jail", "list"),
		plain("jail", "show", "keeper", "--json"),
		plain("status"),
		plain("events", "--json"),
		plain(append([]string{"jail", "replace", "keeper"}, w.keep("a")...)...),
		plain(append([]string{"jail", "replace", "keeper"}, w.keep("b")...)...),
		func(i int) error { // a jail of its own
			name := fmt.Sprintf("at-once-%d", i)
			if _, err := attempt("jail", "create", "--cgroup", "/sys/fs/cgroup/"+name, "--name", name, "--preset", "none", "--workspace", w.base+"/work"); err != nil {
				return err
			}
			if _, err := attempt("jail", "mode", name, "monitor"); err != nil {
				return err
			}
			_, err := attempt("jail", "delete", name)
			return err
		},
		func(i int) error { // more for the one that is there
			id, err := attempt("jail", "grant", "keeper", fmt.Sprintf("%s/work/dist-%d", w.base, i), "--actions", "write_file", "--reason", "a test")
			if err == nil {
				_, err = attempt("jail", "revoke", "keeper", id)
			}
			return err
		},
		func(int) error { // refused, for there is one
			if out, err := attempt("unload"); err == nil || !strings.Contains(err.Error(), "there are live jails") {
				return fmt.Errorf("unload: %s, %v", out, err)
			}
			return nil
		},
		plain("status", "--verify"),
	}
	w.what = "twenty commands at once"
	w.startKeeper()
	var all sync.WaitGroup
	errs := make(chan error, many)
	for i := range many {
		do := commands[random.IntN(len(commands))]
		all.Go(func() { errs <- do(i) })
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		case <-time.After(20 * time.Millisecond):
		}
		w.wantKept("meanwhile")
	}
	w.wantOnePolicy()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	w.stopKeeper()
	if ids := w.expansions(); len(ids) > 0 {
		t.Errorf("expansions are left: %v", ids)
	}
	w.call("status")
	now := w.leftovers()
	w.compare("left", now, before)
	w.compare("gone", before, now)
}
