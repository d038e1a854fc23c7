package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"github.com/thenforce/thenforce/internal/cgroup"
	"github.com/thenforce/thenforce/internal/eventlog"
	"github.com/thenforce/thenforce/internal/policyfile"
	"github.com/thenforce/thenforce/internal/supervise"
	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/loader"
	"golang.org/x/sys/unix"
)

// runFlags are what "thenforce run" takes beyond a policy.
type runFlags struct {
	policy        policyFlags
	user          string
	cwd           string
	name          string
	report        string
	failOnDenial  bool
	memory        string
	pids          int64
	cpus          float64
	timeout       time.Duration
	preserveFDs   int
	noStdioGrants bool
	dieWithParent bool
	unverified    bool
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] [--] CMD [ARG...]",
		Short: "Run a command confined to a workspace",
		Long: `Run a command confined to a workspace: the kernel denies it, and everything it
starts, whatever lies outside the workspace and the grants. It starts only where
that is proven; --allow-unverified goes on without and says so.

Exit code: the command's own (128+n when signal n ended it); 125 when thenforce
itself failed, 126 when CMD cannot be executed, 127 when there is no such CMD;
3 with --fail-on-denial when CMD succeeded but something was denied.`,
		Example: `  thenforce run --workspace ~/src/project -- make test
  thenforce run --grant ~/.cache/go-build:rw --user nobody -- go test ./...`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(fmt.Errorf("no command to run: %s", cmd.UseLine()))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return a.run(&f, args) },
	}
	cmd.Flags().SetInterspersed(false) // what follows CMD is CMD's
	f.policy.register(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.user, "user", "", "run as `NAME|UID[:GROUP|GID]`, with no other groups and no way to gain privileges")
	flags.StringVar(&f.cwd, "cwd", "", "working `DIR` (default: this one where it is granted, else the workspace)")
	flags.StringVar(&f.name, "name", "", "a name for the jail: 1 to 63 of a-z 0-9 . _ -")
	flags.StringVar(&f.report, "report", "", "write a JSON report of the run to `FILE`")
	flags.BoolVar(&f.failOnDenial, "fail-on-denial", false, "exit with 3 when CMD succeeded but something was denied")
	flags.StringVar(&f.memory, "memory", "", "most memory, such as 512m or 2GiB")
	flags.Int64Var(&f.pids, "pids", 0, "most processes and threads")
	flags.Float64Var(&f.cpus, "cpus", 0, "most processors' worth of time, such as 1.5")
	flags.DurationVar(&f.timeout, "timeout", 0, "end CMD after this time, such as 10m")
	flags.IntVar(&f.preserveFDs, "preserve-fds", 0, "pass `N` descriptors on from 3 up (all others but 0 to 2 are closed)")
	flags.BoolVar(&f.noStdioGrants, "no-stdio-grants", false, "do not grant the files and terminals behind 0 to 2")
	flags.BoolVar(&f.dieWithParent, "die-with-parent", false, "kill CMD when thenforce ends first")
	flags.BoolVar(&f.unverified, "allow-unverified", false, "go on where enforcement is not verified, and say so")
	if err := cmd.MarkFlagDirname("cwd"); err != nil {
		panic(err)
	}
	return cmd
}

func (a *app) run(f *runFlags, args []string) error {
	extra, err := supervise.InheritDescriptors(f.preserveFDs)
	if err != nil {
		return exit(exitOwn, err)
	}
	signals := supervise.CatchSignals()
	defer signals.Stop()

	r := &run{app: a, flags: f, args: args, started: time.Now()}
	defer r.close()
	result, err := r.do(extra, signals)
	if err != nil {
		code := supervise.ExitCode(err)
		r.close()
		r.finish(report{Exit: &reportExit{Code: code, From: "thenforce"}})
		return exit(code, r.advise(err))
	}
	code := result.Code
	if f.failOnDenial && code == 0 && r.denials > 0 {
		code = exitDenied
	}
	r.close() // before anything is written where the command could be
	if err := r.finish(report{Exit: &reportExit{Code: code, Signal: signalName(result.Signal), From: "command"}}); err != nil {
		return exit(exitOwn, err)
	}
	if code == result.Code {
		result.Exit()
	}
	return exit(code, nil)
}

// run is one call of "thenforce run".
type run struct {
	app      *app
	flags    *runFlags
	args     []string
	started  time.Time
	policy   *policy
	sets     engine.AllowedSets
	status   engine.EnforcementStatus
	enforcer *loader.Enforcer
	group    *cgroup.Group
	jail     *loader.Jail
	denials  uint64
	events   []loader.Event
	ended    bool
	file     *reportFile
}

func (r *run) do(extra []*os.File, signals *supervise.Signals) (supervise.Result, error) {
	var none supervise.Result
	var (
		user *supervise.User
		err  error
	)
	if r.flags.user != "" {
		if user, err = supervise.LookupUser(r.flags.user); err != nil {
			return none, err
		}
	}
	if r.policy, r.sets, err = compile(&r.flags.policy); err != nil {
		return none, err
	}
	limits, err := r.limits()
	if err != nil {
		return none, err
	}
	for _, notice := range r.sets.Notices {
		logrus.Info(notice)
	}
	dir, err := r.workingDir()
	if err != nil {
		return none, err
	}
	if err := supervise.CheckDirectories(user, r.sets.Workspace.CanonicalRoot, dir); err != nil {
		return none, err
	}
	if r.enforcer, r.status, err = loader.Open(loader.Options{}); err != nil {
		return none, err
	}
	if err := r.status.Err(); err != nil {
		if !r.flags.unverified {
			return none, err
		}
		logrus.Warnf("%v: the command is NOT reliably confined", err)
	}
	if err := r.writeReport(report{State: "starting"}); err != nil {
		return none, err
	}
	if r.enforcer != nil {
		reconcile(r.enforcer)
		if err := r.makeGroup(limits); err != nil {
			return none, err
		}
	}
	process, err := supervise.Start(supervise.Command{
		Args: r.args, Dir: dir, User: user, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Extra: extra,
		Cgroup: r.group, PrivateTmp: r.privateTmp(), Expose: r.exposed(), DieWithParent: r.flags.dieWithParent,
		Timeout: r.flags.timeout, Prepare: r.confine, Signals: signals,
	})
	if err != nil {
		return none, err
	}
	stop := r.collect()
	result, err := process.Wait()
	stop()
	if err != nil {
		logrus.Warn(err)
	}
	return result, nil
}

func (r *run) limits() (cgroup.Limits, error) {
	limits := cgroup.Limits{Memory: r.policy.resources.Memory, Pids: r.policy.resources.Pids, CPUs: r.policy.resources.CPUs}
	if r.flags.pids < 0 || r.flags.cpus < 0 {
		return limits, errors.New("--pids and --cpus take a number above 0")
	}
	if r.flags.pids > 0 {
		limits.Pids = r.flags.pids
	}
	if r.flags.cpus > 0 {
		limits.CPUs = r.flags.cpus
	}
	if r.flags.memory != "" {
		n, err := policyfile.ParseSize(r.flags.memory)
		if err != nil {
			return limits, fmt.Errorf("--memory %q: %w", r.flags.memory, err)
		}
		limits.Memory = n
	}
	return limits, nil
}

// workingDir is where the command starts: the caller's directory where the policy covers it, else the workspace.
func (r *run) workingDir() (string, error) {
	if r.flags.cwd != "" {
		return filepath.Abs(r.flags.cwd)
	}
	here, err := os.Getwd()
	if err != nil {
		return r.sets.Workspace.CanonicalRoot, nil
	}
	for _, o := range r.sets.Objects {
		if within(here, o.Path) && o.Rights.Has(engine.Read) && o.Source != engine.SourcePreset {
			return here, nil
		}
	}
	return r.sets.Workspace.CanonicalRoot, nil
}

func within(path, root string) bool {
	return path == root || strings.HasPrefix(path, strings.TrimSuffix(root, "/")+"/")
}

func (r *run) makeGroup(limits cgroup.Limits) error {
	random := make([]byte, 6)
	rand.Read(random)
	id := hex.EncodeToString(random)
	if cgroup.HostHasSystemd() {
		ctx, cancel := context.WithTimeout(context.Background(), systemdTime)
		defer cancel()
		group, err := cgroup.CreateInScope(ctx, r.status.Cgroup.Mount, id, limits)
		var limit *cgroup.LimitError
		if err == nil || errors.As(err, &limit) {
			r.group = group
			return err
		}
		logrus.Warnf("%v; the command's cgroup is made without systemd", err)
	}
	group, err := cgroup.Create(filepath.Join(r.status.Cgroup.Mount, "thenforce"), id, limits)
	r.group = group
	return err
}

// systemdTime is how long systemd may take to make a scope. It is done in milliseconds, unless it is stuck.
const systemdTime = 10 * time.Second

// privateTmp: the preset gives a command a /tmp of its own, unless the policy says something about /tmp itself.
func (r *run) privateTmp() bool {
	if !slices.Contains(r.policy.Presets, engine.PresetSystem) || r.enforcer == nil {
		return false
	}
	for _, o := range r.sets.Objects {
		if o.Path == "/tmp" {
			return false
		}
	}
	return true
}

// exposed are the objects below /tmp that a private one must not hide.
func (r *run) exposed() []string {
	var paths []string
	for _, o := range r.sets.Objects {
		if within(o.Path, "/tmp") {
			paths = append(paths, o.Path)
		}
	}
	return paths
}

// confine makes the jail when the command's surroundings are ready and nothing of the command runs yet.
func (r *run) confine(view supervise.View) error {
	if r.enforcer == nil {
		return nil
	}
	var open []loader.OpenObject
	for _, private := range []string{view.Tmp, view.Shm} {
		if private == "" {
			continue
		}
		dir, err := view.Open(private)
		if err != nil {
			return err
		}
		defer dir.Close()
		open = append(open, loader.OpenObject{File: dir, Path: private, Rights: engine.AllRights, Source: engine.SourcePreset})
	}
	if !r.flags.noStdioGrants {
		open = append(open, stdioObjects()...)
	}
	jail, err := r.enforcer.CreateJail(loader.JailSpec{
		Cgroup: r.group.File(), CgroupPath: r.group.Path(), Name: r.flags.name, Sets: r.sets, Open: open,
		Owned: true,
	})
	if err != nil {
		return err
	}
	r.jail = jail
	return r.writeReport(report{State: "starting"})
}

// stdioObjects grants regular files and terminals behind 0 to 2 as what they are open for, so that /dev/stdout and
// the like work. Pipes and sockets need no grant.
func stdioObjects() []loader.OpenObject {
	rights := map[[2]uint64]engine.Rights{}
	files := map[[2]uint64]*os.File{}
	var order [][2]uint64
	for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		var st unix.Stat_t
		if unix.Fstat(int(f.Fd()), &st) != nil {
			continue
		}
		if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG && !isTerminal(f) {
			continue
		}
		flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
		if err != nil {
			continue
		}
		key := [2]uint64{uint64(st.Dev), st.Ino}
		if _, ok := files[key]; !ok {
			files[key] = f
			order = append(order, key)
		}
		switch flags & unix.O_ACCMODE {
		case unix.O_RDONLY:
			rights[key] |= engine.Read
		case unix.O_WRONLY:
			rights[key] |= engine.Write
		default:
			rights[key] |= engine.Read | engine.Write
		}
	}
	var open []loader.OpenObject
	for _, key := range order {
		f := files[key]
		path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
		if err != nil {
			path = f.Name()
		}
		open = append(open, loader.OpenObject{File: f, Path: path, Rights: rights[key], Source: engine.SourceStdio})
	}
	return open
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// collect takes this jail's events to the log while the command runs, so that a flood does not fill the ring. The
// function it returns stops that and reads them.
func (r *run) collect() func() {
	if r.jail == nil {
		return func() {}
	}
	log := eventlog.New(eventlog.Dir, loader.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- log.Collect(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, eventlog.ErrBusy) {
			logrus.Warnf("events: %v", err)
		}
		drainEvents(log)
		r.enforcer.Refresh(r.jail)
		r.denials = r.jail.Denials
		if r.flags.report == "" {
			return
		}
		reader := log.Reader(eventlog.Filter{Jail: r.jail.ID, Since: r.started})
		defer reader.Close()
		err := reader.Next(func(e loader.Event) error {
			r.events = append(r.events, e)
			return nil
		})
		if err != nil {
			logrus.Warnf("events: %v", err)
		}
	}
}

// close ends the jail and removes what was made for it, once.
func (r *run) close() {
	if r.ended {
		return
	}
	r.ended = true
	// The jail goes after the last task: what sits in the kernel and does not end even when killed is judged when it
	// wakes. Then the jail stays, and a later command collects it.
	left := false
	if r.group != nil {
		if err := r.group.Remove(); err != nil {
			left = true
			logrus.Warnf("remove cgroup: %v; the jail stays until it is empty", err)
		}
		r.group.Close()
	}
	if r.jail != nil && !left {
		if err := r.enforcer.DeleteJail(r.jail.ID); err != nil && !errors.Is(err, loader.ErrNoJail) {
			logrus.Warnf("delete jail: %v", err)
		}
	}
	if r.enforcer != nil {
		r.enforcer.Close()
	}
}

// finish tells what was denied, in one line and in the report.
func (r *run) finish(out report) error {
	if r.jail != nil {
		out.EventsLost = r.jail.Lost
		if r.denials > 0 && !r.app.quiet {
			fmt.Fprintf(os.Stderr, "thenforce: %s denied (thenforce events --jail %s)\n", count(r.denials, "operation"), r.jail.ID)
		}
	}
	return r.writeReport(out)
}

func count(n uint64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// advise adds what to do to errors that stop a run at its start.
func (r *run) advise(err error) error {
	if fixOf(err) != "" {
		return fmt.Errorf("%w; or go on unconfined with --allow-unverified", withFix(err))
	}
	var command *supervise.CommandError
	if errors.As(err, &command) && errors.Is(err, os.ErrPermission) && command.Path != "" && r.jail != nil && !r.granted(command.Path) {
		return fmt.Errorf("%w: no grant lets the jail execute it; add --grant %s:rx", err, filepath.Dir(command.Path))
	}
	return err
}

// granted says whether the policy lets path be executed, as far as its text tells.
func (r *run) granted(path string) bool {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		path = resolved
	}
	best := ""
	ok := false
	for _, o := range r.sets.Objects {
		if within(path, o.Path) && len(o.Path) >= len(best) {
			best, ok = o.Path, o.Rights.Has(engine.Exec)
		}
	}
	return ok
}
