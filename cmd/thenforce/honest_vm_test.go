//go:build vm

package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// These tests need the full guest. They show that honest work is not hindered: each script runs once outside and once
// in a jail, at the same place with the same files, and has to end with the same exit code, print the same and leave the
// same tree; and nothing of it is denied.

// chore is one script, for bash, in the project's folder.
type chore struct {
	name, script string
	// long scripts take minutes under emulation: they run in make soak.
	long bool
	// varies says that what the script prints is another thing each time.
	varies bool
	// grants are given beside the workspace.
	grants []string
	// denied fits the paths of what is denied all the same, and does no harm.
	denied string
}

var honestWork = []chore{
	{name: "git", script: `
		git init -q -b main repo && cd repo
		cp -r ../src . && git add . && git commit -qm first
		git checkout -q -b topic && sed -i s/world/there/ src/hello.c && git commit -qam second
		git checkout -q main && echo more >more && git add more && git commit -qm third
		git merge -q --no-edit topic
		echo dirty >>more && git stash -q && git stash pop -q && git checkout -q more
		cd .. && git clone -q repo clone && git -C repo worktree add -q ../tree topic
		git -C clone mv src/hello.c src/moved.c && git -C clone commit -qam moved && git -C repo pull -q ../clone main
		git -C repo gc -q && git -C repo fsck && git -C repo worktree remove ../tree
		git -C repo log --format=%H%s && git -C repo status --porcelain`},
	{name: "gcc and make", script: `
		cat >Makefile <<-'END'
		.RECIPEPREFIX = >
		program: src/hello.o libgreet.so
		> gcc -o $@ src/hello.o -L. -lgreet -Wl,-rpath,'$$ORIGIN'
		libgreet.so: src/greet.c
		> gcc -shared -fPIC -o $@ $<
		archive.a: src/hello.o src/greet.o
		> ar rcD $@ $^
		END
		make -j4 program archive.a && ./program && make program && touch src/greet.c && make program && ./program`},
	{name: "python", script: `
		python3 -m venv --without-pip env && . env/bin/activate
		python - <<-'END'
		import json, mmap, multiprocessing, os, sqlite3, subprocess, sys, tempfile
		from multiprocessing import shared_memory
		db = sqlite3.connect('data.db')
		db.execute('pragma journal_mode=wal')
		db.execute('create table t (n integer)')
		db.executemany('insert into t values (?)', [(n,) for n in range(500)])
		db.commit()
		print(db.execute('select sum(n) from t').fetchone(), sys.prefix)
		db.close()
		m = shared_memory.SharedMemory(create=True, size=4096)
		m.buf[0] = 7
		same = shared_memory.SharedMemory(name=m.name)
		print(same.buf[0])
		same.close(); m.close(); m.unlink()
		fd = os.memfd_create('m'); os.write(fd, b'in memory'); print(os.pread(fd, 9, 0))
		print(open(f'/proc/self/fd/{fd}').read())
		with tempfile.NamedTemporaryFile() as f: f.write(b'x')
		t = os.open('.', os.O_TMPFILE | os.O_RDWR, 0o644); os.write(t, b'linked\n')
		subprocess.run(['ln', '-L', f'/proc/self/fd/{t}', 'from-tmpfile'], pass_fds=[t], check=True)
		print(subprocess.run(['sh', '-c', 'echo from a child'], capture_output=True).stdout)
		END`},
	{name: "python and pip", long: true, script: `
		mkdir -p wheel && python3 - <<-'END'
		import zipfile
		z = zipfile.ZipFile('wheel/greet-1.0-py3-none-any.whl', 'w')
		def put(name, text): z.writestr(zipfile.ZipInfo(name), text)
		put('greet.py', 'print("greetings")\n')
		put('greet-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\nName: greet\nVersion: 1.0\n')
		put('greet-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
		put('greet-1.0.dist-info/RECORD', 'greet.py,,\ngreet-1.0.dist-info/METADATA,,\ngreet-1.0.dist-info/WHEEL,,\ngreet-1.0.dist-info/RECORD,,\n')
		z.close()
		END
		python3 -m venv env && env/bin/pip -q install --no-index --no-compile --disable-pip-version-check wheel/*.whl && env/bin/python -m greet`},
	{name: "npm", long: true, script: `
		mkdir package && cd package && echo '{"name":"greet","version":"1.0.0"}' >package.json && echo 'module.exports = "greetings"' >index.js
		npm pack --silent && mv *.tgz .. && cd .. && mkdir app && cd app && echo '{"name":"app","version":"1.0.0"}' >package.json
		npm install --silent --offline --no-audit --no-fund ../greet-1.0.0.tgz && node -e 'console.log(require("greet"))'`},
	{name: "node", script: `
		node -e '
		const fs = require("fs"), cp = require("child_process")
		fs.writeFileSync("a.txt.new", "edited\n"); fs.renameSync("a.txt.new", "a.txt")
		console.log(cp.execSync("cat a.txt").toString())
		fs.watch(".", () => {}).close()
		fs.mkdirSync("x/y/z", {recursive: true}); fs.cpSync("src", "x/y/z", {recursive: true}); fs.rmSync("x/y/z/hello.c")'`},
	{name: "go", long: true, grants: []string{"/var/cache/honest-go:rwx", "/usr/local/go:rx"}, script: `
		export GOCACHE=/var/cache/honest-go GOFLAGS=-trimpath GOTOOLCHAIN=local GOTELEMETRY=off PATH=$PATH:/usr/local/go/bin
		mkdir -p m && cd m && printf 'module example.com/m\n' >go.mod
		printf 'package main\nfunc main() { println(add(1, 2)) }\nfunc add(a, b int) int { return a + b }\n' >main.go
		printf 'package main\nimport "testing"\nfunc TestAdd(t *testing.T) { if add(1, 2) != 3 { t.Error() } }\n' >main_test.go
		go build -o program . && ./program && go vet . && go test . | cut -d' ' -f1`, varies: true},
	{name: "files", script: `
		mkdir -p a/b c && cp -a src a/b/ && ln a/b/src/hello.c c/hard && mv a/b/src/hello.c c/moved && mv c/moved a/
		tar -C a --sort=name --mtime=@0 -cf t.tar . && tar -C c -xf t.tar && tar -czf t.tgz --mtime=@0 a && rm t.tgz
		rsync -a --delete a/ copy/ && find . -type f -name '*.c' | sort | xargs cat | sha256sum
		sed -i s/include/INCLUDE/ a/hello.c 2>/dev/null || sed -i s/include/INCLUDE/ a/moved
		echo edited >a/x.tmp && mv a/x.tmp a/x && cp --reflink=auto a/x a/y && install -m 755 a/x a/z && truncate -s 100 a/y
		diff -u src/hello.c a/moved >p.diff; cp src/hello.c patched.c && patch -s patched.c <p.diff
		mktemp -d inner.XXXX >/dev/null && rmdir inner.* && dd if=/dev/zero of=zeros bs=1k count=9 status=none && xz -k zeros && zstd -q zeros
		chmod -R go-w . && touch -d @5 a/x && ls -l a | wc -l && vim.tiny -es -u NONE -c 's/^/x/' -c wq a/x && cat a/x && du -s --apparent-size a >/dev/null`},
	{name: "shell", script: `
		echo to stdout >/dev/stdout; echo to stderr >/dev/stderr; cat <(echo substituted) <<<ignored; tee >(cat >teed) <<<tee >/dev/null
		exec 3>three; echo by descriptor >/dev/fd/3; exec 3>&-; cat three; cat /dev/fd/0 <three; echo a | cat - /dev/null | wc -l
		mkfifo pipe && (echo through >pipe &) && cat pipe
		flock lock sh -c 'echo locked'; (flock -x 9; echo locked too) 9>lock
		(inotifywait -q -t 20 -e create watched >seen 2>&1 &) ; mkdir watched
		script -qec 'tty >/dev/null && echo on a terminal' /dev/null | tr -d '\r'
		head -c 5 /dev/urandom | wc -c; dd if=/dev/zero bs=10 count=1 status=none | wc -c; echo gone >/dev/null
		trap 'echo trapped' USR1; kill -USR1 $$; (ulimit -n 20; ulimit -n); timeout 5 true; nice true; setsid true; wait; rm -f seen
		echo shm >/dev/shm/honest.$$ && cat /dev/shm/honest.$$ && rm /dev/shm/honest.$$; t=$(mktemp) && echo t >$t && rm $t; umask 077; echo x >private`},
	{name: "sqlite", script: `
		sqlite3 a.db 'create table t (n); pragma journal_mode=delete;'
		for i in 1 2 3 4 5 6; do sqlite3 -cmd '.timeout 60000' a.db "insert into t values ($i)" & done; wait
		sqlite3 a.db 'select sum(n) from t; vacuum;' && rm a.db`},
	{name: "many processes", script: `
		mkdir out; for i in $(seq 200); do (sleep 1; echo $i >out/$i) & done; wait; ls out | wc -l
		for i in $(seq 300); do true | : ; done; for i in $(seq 50); do /bin/true; done; echo all`},
	// Others' processes, the root of all, and what lscpu guesses a hypervisor by.
	{name: "looking around", varies: true, denied: `^(/proc/[0-9]+/.*|/|/proc/bus/pci/devices|/sys/firmware/dmi/.*)$`, script: `
		set -e; ps >/dev/null; ps aux >/dev/null; pgrep -x bash >/dev/null; free >/dev/null; uptime >/dev/null; nproc >/dev/null; lscpu >/dev/null
		id >/dev/null; hostname >/dev/null; uname -a >/dev/null; getent passwd root >/dev/null; date >/dev/null; locale >/dev/null
		df . >/dev/null; stat / >/dev/null; ls / >/dev/null || true; env >/dev/null; which gcc >/dev/null; ldd /bin/ls >/dev/null; file src/hello.c >/dev/null`},
}

func TestProfileFullHonestWork(t *testing.T) {
	t.Run("ext4", func(t *testing.T) { testHonestWork(t, "/srv/honest", 1000) })
	t.Run("overlayfs", func(t *testing.T) {
		// The project itself lies in the lower layer.
		base, err := os.MkdirTemp("/srv", "overlay-")
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{"lower/honest", "upper", "work", "merged"} {
			if err := os.MkdirAll(filepath.Join(base, dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		options := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", base)
		if err := unix.Mount("overlay", base+"/merged", "overlay", 0, options); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			unix.Unmount(base+"/merged", unix.MNT_DETACH)
			os.RemoveAll(base)
		})
		testHonestWork(t, base+"/merged/honest", 0)
	})
}

func testHonestWork(t *testing.T, dir string, user int) {
	for _, w := range honestWork {
		if w.long && os.Getenv("THENFORCE_VM_SOAK") == "" {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			for _, grant := range w.grants {
				path, rights, _ := strings.Cut(grant, ":")
				if rights == "rx" {
					continue
				}
				if err := errors.Join(os.MkdirAll(path, 0o755), os.Chown(path, user, user)); err != nil {
					t.Fatal(err)
				}
			}
			outside := w.run(t, dir, user, false)
			inside := w.run(t, dir, user, true)
			if outside.code != inside.code {
				t.Errorf("exit code %d outside, %d inside\noutside: %s\ninside: %s", outside.code, inside.code, outside.output, inside.output)
			}
			if !w.varies && outside.output != inside.output {
				t.Errorf("printed outside:\n%sinside:\n%s", outside.output, inside.output)
			}
			if outside.code != 0 {
				t.Errorf("the script itself is wrong: exit code %d: %s", outside.code, outside.output)
			}
			for path, what := range outside.tree {
				if inside.tree[path] != what {
					t.Errorf("%s: %s outside, %q inside", path, what, inside.tree[path])
				}
			}
			for path, what := range inside.tree {
				if outside.tree[path] == "" {
					t.Errorf("%s: only inside: %s", path, what)
				}
			}
			for _, e := range inside.events {
				if w.denied != "" && regexp.MustCompile(w.denied).MatchString(e.Path) {
					continue
				}
				t.Errorf("denied: %s %s by %s: %s %s", e.Op, e.Path, e.Comm, e.Errno, e.Code)
			}
		})
	}
}

type outcome struct {
	code   int
	output string
	tree   map[string]string
	events []eventLine
}

// run does the work in a fresh copy of the project.
func (w chore) run(t *testing.T, dir string, user int, jailed bool) outcome {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"src/hello.c": "#include <stdio.h>\nvoid greet(const char *);\nint main(void) { greet(\"world\"); return 0; }\n",
		"src/greet.c": "#include <stdio.h>\nvoid greet(const char *who) { printf(\"hello, %s\\n\", who); }\n",
		".home/empty": "",
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, user, user))
	})
	if err != nil {
		t.Fatal(err)
	}
	script := "export HOME=" + dir + "/.home\n" + w.script
	var cmd *exec.Cmd
	if jailed {
		args := []string{"run", "--quiet", "--workspace", dir, "--cwd", dir}
		for _, grant := range w.grants {
			args = append(args, "--grant", grant)
		}
		if user != 0 {
			args = append(args, "--user", fmt.Sprint(user))
		}
		cmd = exec.Command("thenforce", append(args, "--", "bash", "-c", script)...)
	} else {
		cmd = exec.Command("bash", "-c", script)
		cmd.SysProcAttr = &syscall.SysProcAttr{}
		if user != 0 {
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}
		}
	}
	cmd.Dir = dir
	const date = "2026-01-02T03:04:05Z"
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1", "GIT_AUTHOR_DATE="+date, "GIT_COMMITTER_DATE="+date,
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b", "GIT_CONFIG_COUNT=1",
		"GIT_CONFIG_KEY_0=pack.threads", "GIT_CONFIG_VALUE_0=1")
	start := time.Now()
	r := finish(t, cmd)
	o := outcome{code: r.code, output: r.stdout + r.stderr, tree: hashTree(t, dir)}
	if jailed {
		o.events = eventsSince(t, start)
	}
	return o
}

// notCompared are files that tell when, or in which inodes, the work was done.
var notCompared = []string{".home", "index", "__pycache__", "p.diff"}

// hashTree tells the mode and the content of everything in a tree.
func hashTree(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if slices.Contains(notCompared, entry.Name()) || strings.HasSuffix(path, ".mtimes") {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		what := info.Mode().String()
		switch {
		case info.Mode().IsRegular():
			sum, err := hashFile(path)
			if err != nil {
				return err
			}
			what += fmt.Sprintf(" %d bytes %x", info.Size(), sum[:8])
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			what += " -> " + to
		}
		found[strings.TrimPrefix(path, dir)] = what
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func hashFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return h.Sum(nil), err
}
