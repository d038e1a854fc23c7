package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/fallback"
	"github.com/thenforce/thenforce/pkg/loader"
	"golang.org/x/sys/unix"
)

// explainJail explains one path under the policy of a live jail.
func (a *app) explainJail(ref string, q *question, path string) error {
	op, err := engine.ParseOp(q.op)
	if err != nil {
		return usage(fmt.Errorf("--op %q: use one of %s", q.op, opNames(", ")))
	}
	return withJail(ref, func(enforcer *loader.Enforcer, jail *loader.Jail) error {
		if !filepath.IsAbs(path) {
			path = filepath.Join(jail.Workspace, path)
		}
		x, err := explainIn(enforcer, jail, op, path)
		if err != nil {
			return err
		}
		if a.json {
			err = printJSON(os.Stdout, x)
		} else {
			err = printExplanation(os.Stdout, x, jail.Workspace)
		}
		if err != nil {
			return err
		}
		answer := x.Kernel.kernelAnswer
		var codes exitCodes
		switch {
		case answer == nil:
			codes.add(x.Outcome)
		case answer.Report != nil:
			return errors.New("the engine and the kernel disagree: see the report above")
		case x.Enforcement.State != engine.Verified && answer.Outcome == engine.Allowed:
			codes.add(engine.EnforcementUnverified)
		default:
			codes.add(answer.Outcome)
		}
		return codes.err()
	})
}

func explainIn(enforcer *loader.Enforcer, jail *loader.Jail, op engine.Op, path string) (*explanation, error) {
	probes, err := fallback.NewProbes()
	if err != nil {
		return nil, err
	}
	defer probes.Close()
	status, err := currentStatus(false)
	if err != nil {
		return nil, err
	}
	registry, err := enforcer.RecordedExpansions(jail, journal)
	if err != nil {
		return nil, err
	}
	sets := enforcer.Recorded(jail)
	sets.Workspace = engine.Bind(jail.Workspace, probes)
	sets.Options.FollowSymlinks = !sets.NoSymlinks // as the kernel, which judges what is reached
	e := evaluation{op, sets, status, engine.NewEvaluator(sets, registry, probes), probes}
	x := e.explain(path)

	task, err := jail.Task()
	if err != nil {
		return nil, err
	}
	defer task.Close()
	opinion, err := enforcer.Explain(jail, task, path, op)
	switch {
	case errors.Is(err, loader.ErrNoTask):
		x.Kernel = kernelOpinion{State: "not-asked", Reason: loader.ErrNoTask.Error()}
		return &x, nil
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		x.Kernel = kernelOpinion{State: "not-asked", Reason: "there is nothing at the path that could be judged: " + err.Error()}
		return &x, nil
	case err != nil:
		return nil, err
	}
	x.Kernel = describeOpinion(opinion)
	e.compare(jail, task.Root(), path, &x, opinion)
	return &x, nil
}

func describeOpinion(o *loader.Opinion) kernelOpinion {
	answer := &kernelAnswer{Outcome: engine.Denied, Code: o.Code, Rights: o.Rights.String(), Object: o.Object, Jail: o.Jail}
	reason := loader.CodeReason(o.Code)
	if o.Allowed {
		answer.Outcome = engine.Allowed
		reason += " without a grant, by a rule of the programs themselves"
	}
	if o.Grant != nil {
		answer.Grant = o.Grant
		if o.Allowed {
			reason = "allowed"
		}
		reason += fmt.Sprintf(", by the %s grant on %s (%s), which has %s there", o.Grant.Source, quoted(o.Grant.Path), o.Grant.Rights, o.Rights)
	}
	if o.Link {
		reason += "; it is a symbolic link, and the jail follows none of its own trees"
	}
	if o.Monitored {
		reason += "; the jail is in monitor mode, and lets it go"
	}
	if o.Missing {
		reason += "; asked of the directory, for nothing is there yet"
	}
	return kernelOpinion{State: "asked", Reason: reason, kernelAnswer: answer}
}

// compare asks the engine about the very object that the kernel has judged, and puts a report into the explanation where
// it says otherwise.
func (e *evaluation) compare(jail *loader.Jail, root *os.File, path string, x *explanation, o *loader.Opinion) {
	answer := x.Kernel.kernelAnswer
	target, why := e.comparable(jail, root, path, o)
	if why != "" {
		answer.Apart = why
		return
	}
	d := e.evaluator.Decide(engine.Request{Op: e.op, Path: target, EnforcementAvailable: true})
	if d.Outcome != engine.Allowed && d.Outcome != engine.Denied {
		answer.Apart = fmt.Sprintf("the engine says %s of it (%s), which the kernel does not know", d.Outcome, d.Code)
		return
	}
	answer.Compared = d.Outcome
	if d.Outcome == answer.Outcome {
		return
	}
	report := &bugReport{Version: version(), Kernel: e.status.Kernel, Status: e.status, Engine: &d, Object: o}
	report.Jail = jailDetails{jailJSON: describe(jail), GrantList: jail.Grants, Denied: jail.Denied}
	if text, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
		report.Mountinfo = string(text)
	}
	answer.Report = report
}

// comparable gives the path, free of links, that the engine has to be asked about to have judged the same, or says why
// there is none.
func (e *evaluation) comparable(jail *loader.Jail, root *os.File, path string, o *loader.Opinion) (target, why string) {
	switch {
	case jail.Contained:
		return "", "the jail is a container's, with paths of its own"
	case o.Link:
		return "", "the jail does not follow the link, and the engine judges what is reached"
	case o.Jail != jail.ID:
		return "", "a jail around this one decides"
	case o.Allowed && o.Grant == nil:
		return "", "the kernel programs know the object without a grant"
	case o.Code == "device-node":
		return "", "that device nodes take a grant of their own is a rule of the programs"
	}
	dir, name := filepath.Split(filepath.Clean(path))
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", err.Error()
	}
	target = filepath.Join(dir, name)
	switch e.op {
	case engine.OpDelete, engine.OpRename, engine.OpLink, engine.OpCreate:
		if fi, err := os.Lstat(target); err == nil && fi.Mode()&fs.ModeSymlink != 0 {
			return "", "the engine follows the link, and the kernel judges the link itself"
		}
		if slices.ContainsFunc(e.sets.Objects, func(granted engine.Object) bool { return granted.Path == target }) {
			return "", "the name of a granted object lies in the directory around it, and the engine asks for no rights there"
		}
	default:
		if target, err = filepath.EvalSymlinks(target); err != nil {
			return "", err.Error()
		}
	}
	if root == nil {
		return target, ""
	}
	here, there := unix.Stat_t{}, unix.Stat_t{}
	at := target
	if o.Missing {
		at = filepath.Dir(target)
	}
	if err := unix.Lstat(at, &here); err != nil {
		return "", err.Error()
	}
	fd, err := unix.Openat2(int(root.Fd()), at, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return "", err.Error()
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &there); err != nil {
		return "", err.Error()
	}
	if here.Dev != there.Dev || here.Ino != there.Ino {
		return "", "the jail's tasks have another mount namespace, and find something else there"
	}
	return target, ""
}
