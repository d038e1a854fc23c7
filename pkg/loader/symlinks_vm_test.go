//go:build vm

package loader

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/thenforce/thenforce/pkg/engine"
)

func TestNoSymlinks(t *testing.T) {
	e := openVerified(t)
	attachedNow := func() bool {
		status := Inspect(Options{})
		if status.State != engine.Verified {
			t.Errorf("unverified: %v", status.Reasons)
		}
		return slices.ContainsFunc(status.Hooks, func(h engine.HookStatus) bool { return h.Name == followLink && h.Attached })
	}
	if attachedNow() {
		t.Errorf("%s is attached and nobody needs it", followLink)
	}
	base := tmpfsIn(t)
	at := func(name string) string { return filepath.Join(base, name) }
	for _, dir := range []string{"in", "preset", "elsewhere"} {
		if err := errors.Join(os.Mkdir(at(dir), 0o755), os.Symlink(at("in/file"), at(dir+"/link"))); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(at("in/file"), nil, 0o644), os.Symlink("in", at("dirlink"))); err != nil {
		t.Fatal(err)
	}
	jail := func(refuse bool) (*Jail, *canaryChild) {
		return jailed(t, e, engine.AllowedSets{
			Workspace:  engine.WorkspaceIdentity{CanonicalRoot: at("in")},
			NoSymlinks: refuse,
			Objects: []engine.Object{
				{Path: at("in"), Rights: engine.AllRights, Source: engine.SourceWorkspace},
				{Path: at("preset"), Rights: engine.Read, Source: engine.SourcePreset},
			},
		})
	}
	_, free := jail(false)
	if attachedNow() {
		t.Errorf("%s is attached for a jail that follows links", followLink)
	}
	strict, child := jail(true)
	if !attachedNow() {
		t.Fatalf("%s is not attached", followLink)
	}
	events, err := OpenEvents(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	take := func() (seen []Event) {
		for {
			ev, err := events.Read(time.Now())
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return seen
			}
			if err != nil {
				t.Fatal(err)
			}
			if ev.Jail == strict.ID {
				seen = append(seen, ev)
			}
		}
	}
	expectOpen(t, "no link", child, at("in/file"), 0)
	take() // what the child's own start was denied

	expectOpen(t, "no link", child, at("in/file"), 0)
	expectOpen(t, "a link of the workspace", child, at("in/link"), eacces)
	expectOpen(t, "a link of nobody's", child, at("elsewhere/link"), 0)
	expectOpen(t, "a directory's link of nobody's", child, at("dirlink/file"), 0)
	expectOpen(t, "a preset's link", child, at("preset/link"), 0)
	expectOpen(t, "a link of the kernel's", child, "/proc/self/status", 0)
	expectOpen(t, "in a jail that follows links", free, at("in/link"), 0)
	if errno, err := child.do([]string{"symlink", at("in/made")}); err != nil || errno != 0 {
		t.Errorf("make a link: %v %v", errnoName(errno), err)
	}
	seen := take()
	if len(seen) != 1 || seen[0].Hook != followLink || seen[0].Op != "follow" || seen[0].Code != "forbidden-operation" {
		t.Errorf("events: %+v", seen)
	}

	child.stop()
	if err := e.DeleteJail(strict.ID); err != nil {
		t.Fatal(err)
	}
	if attachedNow() {
		t.Errorf("%s is still attached, and nobody needs it", followLink)
	}

	// A link that is detached behind our back is told, and no new jail relies on it.
	jail(true)
	i := followLinkIndex()
	if err := os.Remove(filepath.Join(e.opts.pins(), linkPin(attachments[i]))); err != nil {
		t.Fatal(err)
	}
	if status := Inspect(Options{}); !hasCode(status, engine.LinkLost) {
		t.Errorf("with its pin gone: %v %v", status.State, status.Reasons)
	}
}
