package supervise

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestLookUp(t *testing.T) {
	dir := publicDir(t)
	files := map[string]struct {
		mode os.FileMode
		text string
	}{
		"one/cmd":         {0o755, "#!/bin/sh\necho one $*"},
		"two/cmd":         {0o755, "#!/bin/sh\necho two $*"},
		"noexec/cmd":      {0o644, "#!/bin/sh\necho noexec"},
		"plain/cmd":       {0o755, "echo plain $0 $*"},
		"interpreter/cmd": {0o755, "#!/nowhere/sh\n"},
		"private/cmd":     {0o700, "#!/bin/sh\necho private"},
		"closed/cmd":      {0o755, "#!/bin/sh\necho closed"},
		"isfile":          {0o755, ""},
		"here":            {0o755, "#!/bin/sh\necho here"},
		"denied/cmd":      {0o755, "#!" + dir + "/noexec/cmd\n"},
	}
	for name, f := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(f.text), f.mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "folder/cmd"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "folder/dangling")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "closed"), 0o700); err != nil {
		t.Fatal(err)
	}
	other := &User{Name: "other", UID: 4001, GID: 4001, Home: "/"}
	tests := []struct {
		name string
		path string // PATH: elements below dir; "-" means no PATH, "." an empty element.
		cmd  string
		user *User
		out  string // What a run prints, else:
		code int
		at   string // CommandError.Path, below dir.
	}{
		{"first", "one two", "cmd", nil, "one a b", 0, ""},
		{"second", "nowhere isfile one", "cmd", nil, "one a b", 0, ""},
		{"after a denied one", "noexec folder two", "cmd", nil, "two a b", 0, ""},
		{"after a broken one", "interpreter two", "cmd", nil, "two a b", 0, ""},
		{"only denied ones", "nowhere noexec folder", "cmd", nil, "", 126, "noexec/cmd"},
		{"denied goes before broken", "interpreter folder", "cmd", nil, "", 126, "folder/cmd"},
		{"none", "nowhere isfile", "cmd", nil, "", 127, ""},
		{"dangling link", "folder", "dangling", nil, "", 127, ""},
		{"no interpreter", "interpreter", "cmd", nil, "", 127, "interpreter/cmd"},
		{"interpreter not executable", "denied", "cmd", nil, "", 126, "denied/cmd"},
		{"no #!", "plain", "cmd", nil, "plain " + dir + "/plain/cmd a b", 0, ""},
		{"empty element", "nowhere .", "here", nil, "here", 0, ""},
		{"no PATH", "-", "echo", nil, "a b", 0, ""},
		{"not in PATH", "one", "here", nil, "", 127, ""},
		{"empty name", "one", "", nil, "", 127, ""},
		{"slash", "one", dir + "/two/cmd", nil, "two a b", 0, ""},
		{"relative", "one", "two/cmd", nil, "two a b", 0, ""},
		{"slash, missing", "one", dir + "/three/cmd", nil, "", 127, ""},
		{"slash, not executable", "one", dir + "/noexec/cmd", nil, "", 126, "noexec/cmd"},
		{"slash, folder", "one", dir + "/folder", nil, "", 126, "folder"},
		{"slash, no #!", "one", dir + "/plain/cmd", nil, "plain " + dir + "/plain/cmd a b", 0, ""},
		{"slash, through a file", "one", dir + "/isfile/cmd", nil, "", 126, ""},
		{"private, as root", "private two", "cmd", nil, "private", 0, ""},
		{"private, as another", "private two", "cmd", other, "two a b", 0, ""},
		{"closed folder, as another", "closed two", "cmd", other, "two a b", 0, ""},
		{"only private, as another", "private closed", "cmd", other, "", 126, "private/cmd"},
		{"slash, private, as another", "", dir + "/private/cmd", other, "", 126, "private/cmd"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var elements []string
			for _, e := range strings.Fields(tt.path) {
				if e = filepath.Join(dir, e); e == dir {
					e = ""
				}
				elements = append(elements, e)
			}
			c := Command{Args: []string{tt.cmd, "a", "b"}, Dir: dir, User: tt.user, Cgroup: newGroup(t)}
			c.Env = []string{"OTHER=1", "PATH=" + strings.Join(elements, ":")}
			if tt.path == "-" {
				c.Env = []string{}
			}
			out, res, err := output(t, c)
			out = strings.TrimSuffix(out, "\n")
			if tt.code == 0 {
				if err != nil || res.Code != 0 || out != tt.out {
					t.Errorf("got %q, %+v, %v, want %q", out, res, err, tt.out)
				}
				return
			}
			var ce *CommandError
			if !errors.As(err, &ce) {
				t.Fatalf("got %q, %+v, %v, want a CommandError", out, res, err)
			}
			at := tt.at
			if at != "" {
				at = filepath.Join(dir, at)
			}
			if diff := cmp.Diff([]any{tt.code, at}, []any{ExitCode(err), ce.Path}); diff != "" {
				t.Errorf("%v: exit code and path (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestCommandErrorText(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
		code int
	}{
		{&CommandError{Name: "cmd", Err: unix.ENOENT}, "run cmd: command not found", 127},
		{&CommandError{Name: "./cmd", Err: unix.ENOENT}, "run ./cmd: no such file or directory", 127},
		{&CommandError{Name: "cmd", Path: "/x/cmd", Err: unix.ENOENT},
			"run cmd: the interpreter that /x/cmd asks for does not exist", 127},
		{&CommandError{Name: "cmd", Path: "/x/cmd", Err: unix.EACCES}, "run cmd: execute /x/cmd: permission denied", 126},
		{&InterruptedError{unix.SIGTERM}, "interrupted before the command was started (SIGTERM)", 143},
		{&AccessError{Path: "/a/b", At: "/a", User: "u", Err: unix.EACCES}, "enter /a/b as user u: /a: permission denied", 125},
	} {
		if got := tt.err.Error(); got != tt.want || ExitCode(tt.err) != tt.code {
			t.Errorf("%q, exit code %d, want %q, %d", got, ExitCode(tt.err), tt.want, tt.code)
		}
	}
}
