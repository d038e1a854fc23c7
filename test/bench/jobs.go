//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"
)

// jobsWorkspace holds what the jobs work on, their temporary files and caches: the same file system whatever confines them.
const jobsWorkspace = "/w"

// job is a piece of real work, by the shell, in the workspace.
type job struct{ Name, script string }

var jobs = []job{
	{"tar of 5,000 files", "tar -cf tmp/out.tar tree"},
	{"git status on 5,000 files", "git -C tree status --porcelain"},
	{"compile a C project", "cd c && gcc -O1 -o ../tmp/c *.c"},
	{"go build, warm cache", "cd module && go build -trimpath -o ../tmp/module ."},
}

// confinement is a way to start a job. Where before is empty the job is started as it is.
type confinement struct {
	name   string
	before []string
}

// confinements give the same: the workspace to write in, the system to read and execute.
func confinements(self string) []confinement {
	bwrap := []string{"bwrap", "--die-with-parent", "--bind", jobsWorkspace, jobsWorkspace, "--dev", "/dev", "--proc", "/proc", "--chdir", jobsWorkspace}
	for _, dir := range readable() {
		bwrap = append(bwrap, "--ro-bind", dir, dir)
	}
	run := []string{"thenforce", "run", "--quiet", "--workspace", jobsWorkspace, "--cwd", jobsWorkspace, "--grant", "/usr/local/go:rx", "--"}
	return []confinement{
		{"no jail", nil},
		{"jail", run},
		{landlocked, []string{self, "landlocked"}},
		{"bubblewrap", append(bwrap, "--")},
	}
}

// readable are the folders of the system that are there.
func readable() []string {
	return slices.DeleteFunc([]string{"/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/sys"}, func(dir string) bool {
		_, err := os.Stat(dir)
		return err != nil
	})
}

// underLandlock executes a command under rules like those of the jail.
func underLandlock(args []string) error {
	if len(args) == 0 {
		return errors.New("no command")
	}
	err := landlock.V3.RestrictPaths(
		landlock.RWDirs(jobsWorkspace).WithRefer(), landlock.RODirs(append(readable(), "/proc")...),
		landlock.RWFiles("/dev/null", "/dev/zero", "/dev/urandom", "/dev/tty").IgnoreIfMissing(),
	)
	if err != nil {
		return err
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	return &os.PathError{Op: "execute", Path: path, Err: unix.Exec(path, args, os.Environ())}
}

// timed runs a command to its end and prints the instructions that it and what it waited for executed.
func timed(args []string) error {
	if len(args) == 0 {
		return errors.New("no command")
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	_, err := fmt.Println(spent(cmd.ProcessState))
	return err
}

// jobResult is what one job took under one confinement: its own instructions, and with the start and end of what
// confines it. The lists are in the order of the rounds.
type jobResult struct {
	Job         string
	Confinement string
	Alone       []int64
	Whole       []int64
}

// measureJobs runs each job under each confinement in turn, so that whatever changes with time meets all of them.
func measureJobs(args []string) error {
	f := flag.NewFlagSet("bench jobs", flag.ContinueOnError)
	rounds := f.Int("rounds", 5, "runs of each job under each confinement")
	only := f.String("job", "", "only jobs whose name begins with this")
	if err := f.Parse(args); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := prepareJobs(); err != nil {
		return err
	}
	var results []*jobResult
	for _, j := range jobs {
		if !strings.HasPrefix(j.Name, *only) {
			continue
		}
		first := len(results)
		kinds := confinements(self)
		for _, c := range kinds {
			results = append(results, &jobResult{Job: j.Name, Confinement: c.name})
		}
		for round := range *rounds + 1 {
			for i, c := range kinds {
				alone, whole, err := runJob(self, c, j)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", j.Name, c.name, err)
				}
				if round == 0 { // it loads programs, and warms caches
					continue
				}
				r := results[first+i]
				r.Alone, r.Whole = append(r.Alone, alone), append(r.Whole, whole)
			}
		}
		printJob(results[first:])
	}
	return json.NewEncoder(os.Stdout).Encode(results)
}

// printJob prints the rows of one job's table.
func printJob(results []*jobResult) {
	base := results[0]
	for _, r := range results {
		alone, whole := median(slices.Clone(r.Alone)), median(slices.Clone(r.Whole))
		fmt.Printf("| %s | %s | %.1f M | %+.2f %% | %.1f M | %+.2f %% |\n", r.Job, r.Confinement,
			float64(alone)/1e6, percentOver(alone, median(slices.Clone(base.Alone))),
			float64(whole)/1e6, percentOver(whole, median(slices.Clone(base.Whole))))
	}
}

func percentOver(v, base int64) float64 { return 100 * (float64(v)/float64(base) - 1) }

func runJob(self string, c confinement, j job) (alone, whole int64, err error) {
	args := append(slices.Clone(c.before), self, "timed", "sh", "-c", j.script)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = jobsWorkspace
	cmd.Env = jobsEnvironment()
	var trouble bytes.Buffer
	cmd.Stderr = &trouble
	out, err := cmd.Output()
	if err != nil {
		return 0, 0, fmt.Errorf("%w: %s", err, trouble.Bytes())
	}
	alone, err = strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	return alone, spent(cmd.ProcessState), err
}

func jobsEnvironment() []string {
	env := []string{"PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	for name, dir := range map[string]string{"HOME": "home", "TMPDIR": "tmp", "GOCACHE": "gocache", "GOPATH": "gopath"} {
		env = append(env, name+"="+filepath.Join(jobsWorkspace, dir))
	}
	return append(env, "CGO_ENABLED=0", "GOTOOLCHAIN=local", "GOPROXY=off", "GOFLAGS=-buildvcs=false", "GOTELEMETRY=off")
}

// prepareJobs makes what the jobs work on. The module and its build cache come from outside: to fill one in a guest
// takes minutes.
func prepareJobs() error {
	for _, dir := range []string{"home", "tmp", "gopath", "c"} {
		if err := os.MkdirAll(filepath.Join(jobsWorkspace, dir), 0o755); err != nil {
			return err
		}
	}
	for i := range 5000 {
		dir := filepath.Join(jobsWorkspace, "tree", fmt.Sprintf("d%02d/sub/e%d", i/100, i/20%5))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		text := strings.Repeat(fmt.Sprintf("line of file %d\n", i), 20)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%d.txt", i)), []byte(text), 0o644); err != nil {
			return err
		}
	}
	var main strings.Builder
	main.WriteString("#include <stdio.h>\n")
	for i := range 4 {
		source := fmt.Sprintf("#include <stdlib.h>\n#include <string.h>\nint f%d(const char *s) { return atoi(s) + (int)strlen(s) * %d; }\n", i, i)
		if err := os.WriteFile(filepath.Join(jobsWorkspace, "c", fmt.Sprintf("f%d.c", i)), []byte(source), 0o644); err != nil {
			return err
		}
		fmt.Fprintf(&main, "int f%d(const char *);\n", i)
	}
	main.WriteString("int main(void) { printf(\"%d\\n\", f0(\"1\") + f1(\"2\") + f2(\"3\") + f3(\"4\")); return 0; }\n")
	if err := os.WriteFile(filepath.Join(jobsWorkspace, "c", "main.c"), []byte(main.String()), 0o644); err != nil {
		return err
	}
	prepare := exec.Command("sh", "-ec", "git init -q && git config gc.auto 0 && git config maintenance.auto false && git add . && git -c user.name=a -c user.email=a@example.org commit -qm all && sleep 2 && git status --porcelain")
	prepare.Dir = filepath.Join(jobsWorkspace, "tree")
	prepare.Env = jobsEnvironment()
	if out, err := prepare.CombinedOutput(); err != nil {
		return fmt.Errorf("make the repository: %w: %s", err, out)
	}
	return nil
}
