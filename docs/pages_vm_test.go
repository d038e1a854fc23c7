//go:build vm

// Package docs runs what the pages tell their readers to type.
package docs

import (
	"bufio"
	"embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/thenforce/thenforce/contrib/agents"
	"github.com/thenforce/thenforce/contrib/ci"
)

//go:embed agents.md ci.md containers.md
var pages embed.FS

// A block is what a page shows indented, with what the comments of HTML right above it say of it. A block with none is
// typed into a shell, all of it where it has no prompts, and else line by line after the prompts, with the output
// compared that follows. In an output "..." stands for any lines.
//
//	file: PATH          the reader writes it there
//	given: SHELL        what the page takes for granted
//	with: WORD=TEXT     what the reader writes for a word of the page's
//	inside: SHELL       what is typed goes to this program
//	output of: SHELL    it is what this prints, or a part of it
//	soak: WHY           it is typed where nothing is left out
//	not run: WHY        a guest has not what it takes
type block struct {
	line     int
	settings []setting
	text     []string
}

type setting struct{ name, value string }

func (b block) find(name string) (string, bool) {
	for _, s := range b.settings {
		if s.name == name {
			return s.value, true
		}
	}
	return "", false
}

// unread says why a block is left out.
func (b block) unread() string {
	why, _ := b.find("not run")
	if soak, ok := b.find("soak"); ok && os.Getenv("THENFORCE_VM_SOAK") == "" {
		why = soak
	}
	return why
}

var (
	comment = regexp.MustCompile(`^ *<!-- (file|given|with|inside|output of|soak|not run): (.+) -->$`)
	code    = regexp.MustCompile(`^ {4}`)
)

// blocks reads a page.
func blocks(t *testing.T, page string) []block {
	t.Helper()
	text, err := pages.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var found []block
	var settings []setting
	lines := strings.Split(string(text), "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		if m := comment.FindStringSubmatch(line); m != nil {
			settings = append(settings, setting{m[1], m[2]})
			continue
		}
		if strings.Contains(line, "<!--") {
			t.Fatalf("%s:%d: a comment that says nothing to this test: %s", page, i+1, line)
		}
		if line == "" {
			continue
		}
		if !code.MatchString(line) || i > 0 && lines[i-1] != "" {
			if settings != nil {
				t.Fatalf("%s:%d: a comment of a block, and no block: %s", page, i+1, line)
			}
			continue
		}
		b := block{line: i + 1, settings: settings}
		indent := len(line) - len(strings.TrimLeft(line, " "))
		for ; i < len(lines) && (lines[i] == "" || code.MatchString(lines[i])); i++ {
			b.text = append(b.text, lines[i][min(indent, len(lines[i])):])
		}
		i--
		for b.text[len(b.text)-1] == "" {
			b.text = b.text[:len(b.text)-1]
		}
		found, settings = append(found, b), nil
	}
	if len(found) == 0 {
		t.Fatalf("%s: no block", page)
	}
	return found
}

// reader is somebody with a shell, who reads a page.
type reader struct {
	*testing.T
	page string
	in   io.Writer
	out  *bufio.Reader
}

// newReader starts a shell of root's in a directory.
func newReader(t *testing.T, page, dir string) *reader {
	t.Helper()
	cmd := exec.Command("bash", "--noprofile", "--norc")
	cmd.Dir = dir
	cmd.Env = []string{"HOME=/root", "USER=root", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	r := &reader{t, page, in, bufio.NewReader(out)}
	r.must(0, "thenforce status --verify") // as each page begins
	return r
}

// types gives the shell a script, and what it printed and its status.
func (r *reader) types(script string) (output string, status int) {
	r.Helper()
	const end = "-- the end of what was typed --"
	if _, err := fmt.Fprintf(r.in, "{ %s\n} </dev/null 2>&1\nprintf '\\n%%s %%s\\n' '%s' $?\n", script, end); err != nil {
		r.Fatal(err)
	}
	stuck := time.AfterFunc(5*time.Minute, func() { panic(r.page + ": does not end: " + script) })
	defer stuck.Stop()
	var text strings.Builder
	for {
		line, err := r.out.ReadString('\n')
		if err != nil {
			r.Fatalf("the shell ended at %q: %s", script, text.String())
		}
		if rest, ok := strings.CutPrefix(line, end); ok {
			if status, err = strconv.Atoi(strings.TrimSpace(rest)); err != nil {
				r.Fatal(err)
			}
			return strings.TrimSuffix(text.String(), "\n"), status // printf's
		}
		text.WriteString(line)
	}
}

// must types what has to succeed.
func (r *reader) must(line int, script string) string {
	r.Helper()
	out, status := r.types(script)
	if status != 0 {
		r.Errorf("%s:%d: %s: exit code %d\n%s", r.page, line, script, status, out)
	}
	return out
}

// read does what the page says, block after block.
func (r *reader) read() {
	r.Helper()
	for _, b := range blocks(r.T, r.page) {
		if why := b.unread(); why != "" {
			r.Logf("%s:%d: not typed: %s", r.page, b.line, why)
			continue
		}
		for _, s := range b.settings {
			switch s.name {
			case "given":
				r.must(b.line, s.value)
			case "with":
				word, text, ok := strings.Cut(s.value, "=")
				if !ok || !strings.Contains(strings.Join(b.text, "\n"), word) {
					r.Fatalf("%s:%d: the block has no %q", r.page, b.line, word)
				}
				for i := range b.text {
					b.text[i] = strings.ReplaceAll(b.text[i], word, text)
				}
			}
		}
		if path, ok := b.find("file"); ok {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				r.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(strings.Join(b.text, "\n")+"\n"), 0o644); err != nil {
				r.Fatal(err)
			}
		} else if script, ok := b.find("output of"); ok {
			r.compare(exchange{b.line, script, slices.Concat([]string{"..."}, b.text, []string{"..."})}, r.must(b.line, script), 0)
		} else {
			r.session(b)
		}
	}
}

// exchange is a command of a page and the output that it shows.
type exchange struct {
	line    int
	command string
	want    []string
}

const prompt = "$ "

func (b block) exchanges() []exchange {
	var all []exchange
	for i, line := range b.text {
		last := len(all) - 1
		switch {
		case strings.HasPrefix(line, prompt):
			all = append(all, exchange{b.line + i, strings.TrimPrefix(line, prompt), nil})
		case strings.HasSuffix(all[last].command, "\\") && all[last].want == nil:
			all[last].command += "\n" + line
		default:
			all[last].want = append(all[last].want, line)
		}
	}
	return all
}

// session types what a block shows.
func (r *reader) session(b block) {
	r.Helper()
	inside, ok := b.find("inside")
	if !strings.HasPrefix(b.text[0], prompt) {
		script := strings.Join(b.text, "\n")
		if ok {
			script = typedInto(inside, script)
		}
		r.must(b.line, script)
		return
	}
	if ok {
		r.sessionInside(inside, b.exchanges())
		return
	}
	for _, e := range b.exchanges() {
		out, status := r.types(e.command)
		r.compare(e, out, status)
	}
}

func typedInto(program, script string) string {
	return program + " <<'TYPED'\n" + strings.TrimSuffix(script, "\n") + "\nTYPED"
}

// sessionInside types all of it into one program, which numbers the lines that it reads.
func (r *reader) sessionInside(program string, all []exchange) {
	r.Helper()
	const next = "-- next --"
	var typed strings.Builder
	for _, e := range all {
		fmt.Fprintf(&typed, "echo \"%s $?\"; %s\n", next, e.command)
	}
	out, last := r.types(typedInto(program, typed.String()))
	parts := strings.Split(out, next+" ")[1:]
	if len(parts) != len(all) {
		r.Fatalf("%s:%d: %s: %s", r.page, all[0].line, program, out)
	}
	for i, e := range all {
		_, text, _ := strings.Cut(parts[i], "\n")
		status := last
		if i+1 < len(all) {
			status, _ = strconv.Atoi(strings.TrimSpace(parts[i+1][:strings.Index(parts[i+1], "\n")]))
		}
		r.compare(e, text, status)
	}
}

// variable is what differs from run to run: times, identities, process ids.
var variable = regexp.MustCompile(`[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}|\b[0-9a-f]{12,64}\b|\[[0-9]+\]`)

// compare holds the page to what was seen. Where it shows no output, the command has to succeed.
func (r *reader) compare(e exchange, out string, status int) {
	r.Helper()
	if len(e.want) == 0 || len(e.want) == 1 && e.want[0] == "..." {
		if status != 0 {
			r.Errorf("%s:%d: %s: exit code %d\n%s", r.page, e.line, e.command, status, out)
		}
		return
	}
	var have, want []string
	if out = strings.TrimSuffix(out, "\n"); out != "" {
		have = strings.Split(variable.ReplaceAllString(out, "#"), "\n")
	}
	for _, line := range e.want {
		want = append(want, variable.ReplaceAllString(line, "#"))
	}
	if !matches(want, have) {
		r.Errorf("%s:%d: %s\nprints\n%s\nand the page shows\n%s", r.page, e.line, e.command, out, strings.Join(e.want, "\n"))
	}
}

func matches(want, have []string) bool {
	if len(want) == 0 {
		return len(have) == 0
	}
	if want[0] == "..." {
		return matches(want[1:], have) || len(have) > 0 && matches(want, have[1:])
	}
	return len(have) > 0 && want[0] == have[0] && matches(want[1:], have[1:])
}

// install does what make install does with the files of contrib.
func install(t *testing.T) {
	t.Helper()
	for files, to := range map[*embed.FS]string{&agents.Files: "/usr/share/thenforce/agents", &ci.Files: "/usr/share/thenforce/ci"} {
		os.RemoveAll(to)
		if err := os.CopyFS(to, files); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("install", "/usr/share/thenforce/ci/thenforce-ci", "/usr/bin").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	t.Cleanup(func() { os.RemoveAll("/usr/share/thenforce"); os.Remove("/usr/bin/thenforce-ci") })
}

// newRepository makes the repository that the pages are about.
func newRepository(t *testing.T) string {
	t.Helper()
	const repo = "/srv/repo"
	t.Cleanup(func() { os.RemoveAll(repo) })
	for name, text := range map[string]string{
		"Makefile": "test: app\n\t./app\napp: main.c\n\tgcc -o $@ $<\n", "main.c": "int main(void) { return 0; }\n",
		".gitignore": "app\n.env\n", ".env": "TOKEN=1\n", "page.html": "<title>page</title>\n",
	} {
		if err := os.MkdirAll(repo, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(repo, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const commit = "git init -q -b main && git add -A && git -c user.name=U -c user.email=u@example.org commit -q -m first"
	cmd := exec.Command("sh", "-ec", commit)
	cmd.Dir = repo
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	return repo
}

func TestProfileFullAgentsPage(t *testing.T) {
	install(t)
	newReader(t, "agents.md", newRepository(t)).read()
}

func TestProfileFullCIPage(t *testing.T) {
	install(t)
	newReader(t, "ci.md", newRepository(t)).read()
}

// Podman and Docker as they come, on a system with systemd. The guest has no network to take busybox's image from.
func TestProfileSystemdContainersPage(t *testing.T) {
	r := newReader(t, "containers.md", t.TempDir())
	r.must(0, `thenforce events >/dev/null; rm -f /var/lib/thenforce/events*.jsonl`) // other tests' of a minute ago
	r.must(0, `mkdir -p bin etc tmp && cp /usr/bin/busybox bin/ && for name in sh ls cat true sleep; do ln -s busybox bin/$name; done
tar -cf /tmp/busybox.tar . && podman import /tmp/busybox.tar docker.io/library/busybox:latest`)
	r.read()
	r.must(0, `podman rm -af -t 0; docker ps -aq | xargs -r docker rm -f; [ -z "$(thenforce jail list --json)" ]`)
}
