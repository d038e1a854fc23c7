//go:build vm

package loader

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// otherName is the argv[0] that turns this program into thenforce of another build: one whose kernel programs do the same
// by other instructions, as a compiler of another version might have made them. Its arguments say what it does.
const otherName = "thenforce-of-another-build"

func init() {
	if os.Args[0] != otherName {
		return
	}
	if err := asOtherBuild(os.Args[1:]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

func asOtherBuild(args []string) error {
	if err := changeObject(); err != nil {
		return err
	}
	if args[0] == "broken" { // its programs do not do what it takes them to do
		for i := range canaries {
			if canaries[i].hook == "path_mkdir" {
				canaries[i].errno = eperm
			}
		}
	}
	e, status, err := Open(Options{})
	if err != nil {
		return err
	}
	if e == nil || status.State != engine.Verified {
		return fmt.Errorf("%v: %v", status.State, status.Reasons)
	}
	defer e.Close()
	if args[0] != "jail" {
		return nil
	}
	dir, err := os.Open(args[1])
	if err != nil {
		return err
	}
	defer dir.Close()
	open, closeAll, err := canaryObjects()
	if err != nil {
		return err
	}
	defer closeAll()
	workspace := args[2]
	_, err = e.CreateJail(JailSpec{Cgroup: dir, CgroupPath: args[1], Name: "upgraded", Open: open, Sets: engine.AllowedSets{
		Workspace: engine.WorkspaceIdentity{CanonicalRoot: workspace, WorkspaceID: engine.WorkspaceID(workspace, engine.CaseSensitive)},
		Objects:   []engine.Object{{Path: workspace, Rights: engine.AllRights, Source: engine.SourceWorkspace}},
	}})
	return err
}

// changeObject makes another object file of the one that this build has. Where a program returns 0, it sets its register by
// an instruction for 32 bits instead of one for 64, which comes to the same.
func changeObject() error {
	const (
		movImm64, movImm32, exitCode = 0xb7, 0xb4, 0x95
		size                         = 8 // of an instruction
	)
	file, err := elf.NewFile(bytes.NewReader(_EnforcerBytes))
	if err != nil {
		return err
	}
	changed := 0
	object := bytes.Clone(_EnforcerBytes)
	for _, section := range file.Sections {
		if section.Flags&elf.SHF_EXECINSTR == 0 || section.Type != elf.SHT_PROGBITS {
			continue
		}
		code := object[section.Offset:][:section.Size]
		for at := 0; at+2*size <= len(code); at += size {
			if bytes.Equal(code[at:at+size], []byte{movImm64, 0, 0, 0, 0, 0, 0, 0}) && code[at+size] == exitCode {
				code[at] = movImm32
				changed++
			}
		}
	}
	if changed == 0 {
		return errors.New("nothing in the object could be changed")
	}
	_EnforcerBytes = object
	objectDigest = strings.Repeat("ab", len(buildDigest()))
	return nil
}

// otherBuild runs it.
func otherBuild(args ...string) (string, error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = append([]string{otherName}, args...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

var _ = addOperations(map[string]func([]string) error{"hammer": hammer})

// hammer tries what the jail denies, and what it allows, until there is a file "stop" in the workspace. It writes how often
// into a file "tries". It fails with ENOTRECOVERABLE when it got outside, and with what else went wrong.
func hammer(a []string) error {
	in, out := a[0], a[1]
	tries := 0
	for ; ; tries++ {
		time.Sleep(200 * time.Microsecond) // or what it waits for would take twice as long
		fd, err := unix.Open(out+"/file", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
		}
		for _, err := range []error{err, unix.Mkdir(out+"/new", 0o700), unix.Unlink(out + "/file"), unix.Rename(in+"/file", out+"/moved")} {
			if err != unix.EACCES {
				return errors.Join(unix.ENOTRECOVERABLE, err)
			}
		}
		if err := openClosed(in + "/file"); err != nil {
			return err
		}
		if openClosed(in+"/stop") == nil {
			return os.WriteFile(in+"/tries", []byte(strconv.Itoa(tries)), 0o600)
		}
	}
}

func openClosed(path string) error {
	return withFile(path, unix.O_RDONLY, func(int) error { return nil })
}

// upgraded is a jail made by another build, in which a process hammers at what it is denied.
type upgraded struct {
	t        *testing.T
	in, out  string
	child    *canaryChild
	hammered chan error
}

func newUpgraded(t *testing.T) *upgraded {
	t.Helper()
	if err := Unload(Options{}, true); err != nil {
		t.Fatal(err)
	}
	base := tmpfsIn(t)
	u := &upgraded{t: t, in: base + "/in", out: base + "/out", hammered: make(chan error, 1)}
	for _, dir := range []string{u.in, u.out} {
		if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(dir+"/file", nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	s := &scene{}
	if err := s.mkdirCgroup("/sys/fs/cgroup", "upgraded-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(Unload(Options{}, true), s.close()); err != nil {
			t.Error(err)
		}
	})
	if out, err := otherBuild("jail", s.path, u.in); err != nil {
		t.Fatalf("another build makes a jail: %v: %s", err, out)
	}
	var err error
	if u.child, err = startCanary(s.cgroup, nil, nil); err != nil {
		t.Fatal(err)
	}
	u.child.timer.Reset(20 * time.Minute)
	go func() {
		errno, err := u.child.do([]string{"hammer", u.in, u.out})
		if err == nil && errno != noErrno {
			err = errno
		}
		u.hammered <- err
	}()
	return u
}

// end stops the hammer: it must not have got outside once.
func (u *upgraded) end() {
	u.t.Helper()
	if err := os.WriteFile(u.in+"/stop", nil, 0o644); err != nil {
		u.t.Fatal(err)
	}
	if err := <-u.hammered; err != nil {
		u.t.Errorf("the jail did not hold: %v", err)
	}
	text, err := os.ReadFile(u.in + "/tries")
	if tries, failed := strconv.Atoi(string(text)); err != nil || failed != nil || tries < 100 {
		u.t.Errorf("it was tried %q times, %v", text, err)
	} else {
		u.t.Logf("denied %d times, each of 4 operations", tries)
	}
	if err := u.child.stop(); err != nil {
		u.t.Error(err)
	}
}

// inForce gives what is attached, and whether it is this build's.
func (u *upgraded) inForce() ([]enforcerTfProofEntry, bool) {
	u.t.Helper()
	e, err := OpenLoaded(Options{})
	if err != nil || e == nil {
		u.t.Fatalf("adopt: %v", err)
	}
	defer e.Close()
	entries, lost, _ := e.attached()
	if len(lost) > 0 {
		u.t.Errorf("lost: %v", lost)
	}
	return entries, e.isThisBuild()
}

// wantReplaced checks that the programs that were there are in the kernel no more.
func (u *upgraded) wantReplaced(before []enforcerTfProofEntry) {
	u.t.Helper()
	for i, entry := range before {
		if entry.Program == 0 {
			continue
		}
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			fd, err := programByID(entry.Program)
			if errors.Is(err, unix.ENOENT) {
				break
			}
			if err == nil {
				unix.Close(fd)
			}
			if time.Now().After(deadline) {
				u.t.Errorf("%s: the other build's program is still there (%v)", attachments[i].name, err)
				break
			}
		}
	}
}

// A version with another ABI leaves everything as it is and says what to do. Another build with the same ABI takes over
// under a live jail, and so does the first one after that; one whose programs fail replaces nothing. There is no moment in
// which the jail does not hold.
func TestUpgradeUnderALiveJail(t *testing.T) {
	u := newUpgraded(t)
	u.refuseAnotherABI()
	if inFull() {
		u.upgrade()
	}
	if inSoak() {
		u.goBack()
	}
	u.end()
	if inFull() {
		u.replaceWithoutJails()
	}
}

// refuseAnotherABI: what a version pins differs by the folder's name alone, so a renamed folder is another one's.
func (u *upgraded) refuseAnotherABI() {
	t := u.t
	t.Helper()
	opts := Options{}.withDefaults()
	theirs := filepath.Join(opts.PinRoot, "v0")
	if err := os.Rename(opts.pins(), theirs); err != nil {
		t.Fatal(err)
	}
	wantReason(t, engine.StalePins, theirs)
	for _, args := range [][]string{
		{"run", "--workspace", u.in, "--", "true"},
		{"jail", "create", "--cgroup", "/sys/fs/cgroup", "--workspace", u.in},
	} {
		out, err := exec.Command("thenforce", args...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), string(engine.StalePins)) || !strings.Contains(string(out), "thenforce unload --force") {
			t.Errorf("%v: %v: %s", args, err, out)
		}
	}
	if out, err := exec.Command("thenforce", "unload").CombinedOutput(); err == nil {
		t.Errorf("unload: %s", out)
	}
	if err := os.Rename(theirs, opts.pins()); err != nil {
		t.Fatal(err)
	}
	u.wantJail()
	if out, err := otherBuild("open"); err != nil {
		t.Errorf("the version that made the jail: %v: %s", err, out)
	}
}

func (u *upgraded) upgrade() {
	t := u.t
	t.Helper()
	first, ours := u.inForce()
	if ours {
		t.Fatal("the other build is this one")
	}
	e, status, err := Open(Options{})
	if err != nil || e == nil || status.State != engine.Verified || status.Jails != 1 {
		t.Fatalf("upgrade: %v, %d jails: %v, %v", status.State, status.Jails, status.Reasons, err)
	}
	e.Close()
	second, ours := u.inForce()
	if !ours {
		t.Error("the programs of the other build stayed")
	}
	different := 0
	for i := range second {
		if second[i].Tag != first[i].Tag {
			different++
		}
	}
	if different < len(second)/2 {
		t.Errorf("only %d programs differ", different)
	}
	u.wantReplaced(first)
	u.wantJail()
	if _, err := os.Stat(Options{}.withDefaults().staging()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("staging: %v", err)
	}
}

func (u *upgraded) goBack() {
	t := u.t
	t.Helper()
	before, _ := u.inForce()
	if out, err := otherBuild("broken"); err == nil || !strings.Contains(out, string(engine.CanaryFailed)) || !strings.Contains(out, "path_mkdir") {
		t.Errorf("a build whose programs fail: %v: %s", err, out)
	}
	if now, ours := u.inForce(); !ours || now[0] != before[0] {
		t.Error("it replaced the programs all the same")
	}
	if out, err := otherBuild("open"); err != nil {
		t.Errorf("back: %v: %s", err, out)
	}
	if _, ours := u.inForce(); ours {
		t.Error("back: the programs stayed")
	}
	u.wantReplaced(before)
	u.wantJail()
	if status := Inspect(Options{}); status.State != engine.Verified {
		t.Errorf("back: %v", status.Reasons)
	}
}

// replaceWithoutJails: where no jail lives, nothing has to be kept.
func (u *upgraded) replaceWithoutJails() {
	t := u.t
	t.Helper()
	before, ours := u.inForce()
	e, err := OpenLoaded(Options{})
	if err != nil || e == nil {
		t.Fatal(err)
	}
	if err := errors.Join(e.DeleteJail("upgraded"), e.Close()); err != nil {
		t.Fatal(err)
	}
	if ours {
		if out, err := otherBuild("open"); err != nil {
			t.Errorf("with no jail: %v: %s", err, out)
		}
	} else {
		openVerified(t).Close()
	}
	if _, now := u.inForce(); now == ours {
		t.Error("programs of another build stayed though no jail needs them")
	}
	u.wantReplaced(before)
}

// wantJail checks that the jail is known, with what it has denied.
func (u *upgraded) wantJail() {
	u.t.Helper()
	e, err := OpenLoaded(Options{})
	if err != nil || e == nil {
		u.t.Fatal(err)
	}
	defer e.Close()
	if jails, err := e.Jails(); err != nil || len(jails) != 1 || jails[0].Name != "upgraded" || jails[0].Gone || jails[0].Denials == 0 {
		u.t.Errorf("jails: %+v, %v", jails, err)
	}
}
