package supervise

import (
	"errors"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"
)

// These are in the user database of every Debian, and of most others.
const (
	someUser  = "nobody"
	someGroup = "tty"
)

func mustID(t *testing.T, s string) uint32 {
	t.Helper()
	id, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(id)
}

func TestLookupUser(t *testing.T) {
	entry, err := user.Lookup(someUser)
	if err != nil {
		t.Fatal(err)
	}
	uid, gid := mustID(t, entry.Uid), mustID(t, entry.Gid)
	grp, err := user.LookupGroup(someGroup)
	if err != nil {
		t.Fatal(err)
	}
	tty := mustID(t, grp.Gid)
	tests := []struct {
		spec string
		want *User
	}{
		{someUser, &User{Name: someUser, UID: uid, GID: gid, Groups: []uint32{gid}, Home: entry.HomeDir}},
		{someUser + ":" + someGroup, &User{Name: someUser, UID: uid, GID: tty, Groups: []uint32{gid}, Home: entry.HomeDir}},
		{someUser + ":7", &User{Name: someUser, UID: uid, GID: 7, Groups: []uint32{gid}, Home: entry.HomeDir}},
		{entry.Uid, &User{Name: someUser, UID: uid, GID: gid, Home: entry.HomeDir}},
		{entry.Uid + ":" + someGroup, &User{Name: someUser, UID: uid, GID: tty, Home: entry.HomeDir}},
		{"0", &User{Name: "root", Home: "/root"}},
		{"4000000000:4000000001", &User{Name: "4000000000", UID: 4000000000, GID: 4000000001, Home: "/"}},
	}
	for _, tt := range tests {
		got, err := LookupUser(tt.spec)
		if err != nil {
			t.Errorf("%s: %v", tt.spec, err)
			continue
		}
		if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreUnexported(User{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.spec, diff)
		}
	}
}

func TestLookupUserErrors(t *testing.T) {
	for _, tt := range []struct{ spec, want string }{
		{"", "no user is named"},
		{":tty", "no user is named"},
		{someUser + ":", "no group is named"},
		{"no-such-user", `no user named "no-such-user"`},
		{someUser + ":no-such-group", `no group named "no-such-group"`},
		{"4000000000", "name its group too, as 4000000000:GID"},
		// setresuid(2) takes this number as "unchanged": root would stay root.
		{"4294967295", "not a user or group id"},
		{"4294967295:0", "not a user or group id"},
		{"0:4294967295", "not a user or group id"},
		{"4294967296:1", "not a user or group id"},
		{"-1", "no user named"},
		{"+0", "no user named"},
		{"0x0", "no user named"},
		{"nobody:tty:x", "no group named"},
	} {
		if got, err := LookupUser(tt.spec); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %+v, %v, want an error with %q", tt.spec, got, err, tt.want)
		}
	}
}

func TestUserSwitch(t *testing.T) {
	// Something to give up.
	old, err := syscall.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setgroups([]int{0, 4, 27}); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setgroups(old)
	const noCaps = "0000000000000000"
	own := look().Status
	entry, err := user.Lookup(someUser)
	if err != nil {
		t.Fatal(err)
	}
	all := func(id string) string { return strings.TrimSpace(strings.Repeat(id+" ", 4)) }
	tests := []struct {
		spec, uid, gid, groups, caps, bound, nnp, home, name string
	}{
		{"", all("0"), all("0"), "0 4 27", own["CapEff"], own["CapBnd"], "0", os.Getenv("HOME"), os.Getenv("USER")},
		{"root", all("0"), all("0"), "0 4 27", own["CapEff"], own["CapBnd"], "0", "/root", "root"},
		{"root:7", all("0"), all("7"), "0", noCaps, noCaps, "1", "/root", "root"},
		{someUser, all(entry.Uid), all(entry.Gid), entry.Gid, noCaps, noCaps, "1", entry.HomeDir, someUser},
		{entry.Uid, all(entry.Uid), all(entry.Gid), "", noCaps, noCaps, "1", entry.HomeDir, someUser},
		{"4001:4002", all("4001"), all("4002"), "", noCaps, noCaps, "1", "/", "4001"},
	}
	for _, tt := range tests {
		t.Run(tt.spec, func(t *testing.T) {
			c := probeCommand(t)
			c.Args[0] = publicProbe(t)
			if tt.spec != "" {
				if c.User, err = LookupUser(tt.spec); err != nil {
					t.Fatal(err)
				}
			}
			s := observe(t, c)
			want := map[string]string{
				"Uid": tt.uid, "Gid": tt.gid, "Groups": tt.groups, "CapEff": tt.caps, "CapPrm": tt.caps,
				"CapInh": noCaps, "CapAmb": noCaps, "CapBnd": tt.bound, "NoNewPrivs": tt.nnp,
			}
			got := map[string]string{}
			for name := range want {
				got[name] = s.Status[name]
			}
			for name, value := range map[string]string{"HOME": tt.home, "USER": tt.name, "LOGNAME": tt.name} {
				if name == "LOGNAME" && tt.spec == "" {
					value = os.Getenv(name)
				}
				want[name], got[name] = name+"="+value, strings.Join(slices.DeleteFunc(slices.Clone(s.Env),
					func(v string) bool { return !strings.HasPrefix(v, name+"=") }), " ")
				if value == "" {
					want[name] = got[name] // Not set, or empty: it is the caller's.
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// publicProbe returns a copy of this executable that every user can run.
func publicProbe(t *testing.T) string {
	t.Helper()
	dir := publicDir(t)
	data, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "probe")
	// The write descriptor must not be open in a child of another test when it is executed (ETXTBSY), so a process
	// of its own copies.
	cmd := exec.Command("sh", "-c", "cat >$0 && chmod 755 $0", path)
	cmd.Stdin = strings.NewReader(string(data))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// publicDir is a t.TempDir that every user can enter.
func publicDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// What the caller had as inheritable and ambient capabilities must not go on to another user.
func TestInheritableCapabilities(t *testing.T) {
	f := newFront(t, "-user", someUser)
	f.cmd.Args = append([]string{"setpriv", "--inh-caps=+net_raw,+sys_admin", "--ambient-caps=+net_raw", "--"}, f.cmd.Args...)
	f.cmd.Path = "/usr/bin/setpriv"
	f.command(publicProbe(t))
	s := f.state(t)
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if s.Status[set] != "0000000000000000" {
			t.Errorf("%s is %s", set, s.Status[set])
		}
	}
}

func TestCheckDirectories(t *testing.T) {
	dir := publicDir(t)
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{{"open/sub", 0o755}, {"closed/sub", 0o755}, {"closed", 0o700}, {"group", 0o750}, {"own", 0o700}} {
		path := filepath.Join(dir, d.path)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, d.mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(filepath.Join(dir, "group"), 0, 4002); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(dir, "own"), 4001, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("closed/sub", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	stranger := &User{Name: "stranger", UID: 4001, GID: 4001}
	member := &User{Name: "member", UID: 4003, GID: 4003, Groups: []uint32{4002}}
	tests := []struct {
		user     *User
		path, at string
		err      error
	}{
		{nil, "closed/sub", "", nil},
		{stranger, "open/sub", "", nil},
		{stranger, "closed/sub", "closed", unix.EACCES},
		{stranger, "closed", "closed", unix.EACCES},
		{stranger, "link", "link", unix.EACCES},
		{stranger, "group", "group", unix.EACCES},
		{stranger, "own", "", nil},
		{member, "group", "", nil},
		{member, "own", "own", unix.EACCES},
		{nil, "file", "file", unix.ENOTDIR},
		{nil, "file/x", "file", unix.ENOTDIR},
		{nil, "none", "none", unix.ENOENT},
		{nil, "none/x/y", "none", unix.ENOENT},
		{nil, strings.Repeat("x", 300), strings.Repeat("x", 300), unix.ENAMETOOLONG},
	}
	for _, tt := range tests {
		path := filepath.Join(dir, tt.path)
		err := CheckDirectories(tt.user, "/", path)
		if tt.err == nil {
			if err != nil {
				t.Errorf("%v: %v", tt, err)
			}
			continue
		}
		var access *AccessError
		if !errors.As(err, &access) || !errors.Is(err, tt.err) || access.Path != path || access.At != filepath.Join(dir, tt.at) {
			t.Errorf("%+v %s: %v, want %v at %s", tt.user, tt.path, err, tt.err, tt.at)
		}
	}
	// Nothing of it stays.
	if err := CheckDirectories(nil, filepath.Join(dir, "closed/sub")); err != nil {
		t.Errorf("after all: %v", err)
	}
}

// As a relative path, and with the error text a user will read.
func TestCheckDirectoriesRelative(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("a", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := CheckDirectories(nil, "a", "a"); err != nil {
		t.Error(err)
	}
	err := CheckDirectories(nil, "a/b/c")
	if err == nil || err.Error() != "enter a/b/c: a/b: no such file or directory" {
		t.Errorf("%v", err)
	}
}
