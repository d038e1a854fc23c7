//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/loader"
)

const (
	workspace = "/w"
	secret    = "/secret" // outside
	programs  = "/usr/bin"

	manyGrants = 100
)

// depths are how many names below the workspace the file to open lies.
var depths = []int{1, 5, 9, 17, 25, 33}

// States are the surroundings in which operations are measured.
const (
	none        = "no programs"
	empty       = "an empty program on file_open"
	landlocked  = "Landlock"
	outsideOne  = "not in a jail, 1 jail"
	outsideMany = "not in a jail, many jails"
	jailed      = "in a jail"
	jailedMany  = "in a jail of 100 grants, many jails"
)

// statesInOrder are the columns of the table.
var statesInOrder = []string{none, empty, outsideOne, outsideMany, jailed, jailedMany, landlocked}

// results are the costs of a kernel, in instructions, by state and operation.
type results struct {
	Kernel string                      `json:"kernel"`
	Costs  map[string]map[string]int64 `json:"costs"`

	rounds int
}

func openAt(depth int) string  { return "open at depth " + strconv.Itoa(depth) }
func firstAt(depth int) string { return "first open at depth " + strconv.Itoa(depth) }

// fileAt is a file so many names below the workspace.
func fileAt(depth int) string {
	return workspace + strings.Repeat("/d", depth-1) + "/file"
}

// measureOps goes through all states on one kernel and writes the results as JSON.
func measureOps(args []string, w io.Writer) error {
	flags := flag.NewFlagSet("ops", flag.ContinueOnError)
	rounds := flags.Int("rounds", 150, "measure an operation in `N` rounds")
	jails := flags.Int("jails", 1000, "where there are many jails, make it `N`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	r := results{rounds: *rounds, Kernel: release(), Costs: map[string]map[string]int64{}}
	if err := layOut(); err != nil {
		return err
	}
	bare := func(state string) error { return r.measure(state, nil, state == landlocked) }
	if err := errors.Join(bare(none), bare(landlocked)); err != nil {
		return err
	}
	detach, err := attachEmpty()
	if err != nil {
		return err
	}
	if err := errors.Join(bare(empty), detach()); err != nil {
		return err
	}
	enforcer, status, err := loader.Open(loader.Options{})
	if err != nil {
		return err
	}
	defer enforcer.Close()
	if err := status.Err(); err != nil {
		return err
	}
	one, err := makeJail(enforcer, "one", 1)
	if err != nil {
		return err
	}
	defer one.Close()
	if err := errors.Join(bare(outsideOne), r.measure(jailed, one, false)); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "bench: making %d jails (the clock says %d ms)\n", *jails, now()/1e6)
	for i := range *jails - 2 {
		dir, err := makeJail(enforcer, fmt.Sprintf("more-%d", i), 1)
		if err != nil {
			return err
		}
		dir.Close()
	}
	many, err := makeJail(enforcer, "many", manyGrants)
	if err != nil {
		return err
	}
	defer many.Close()
	if err := errors.Join(bare(outsideMany), r.measure(jailedMany, many, false)); err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(r)
}

func release() string {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		panic(err)
	}
	return unix.ByteSliceToString(uts.Release[:])
}

// layOut makes the workspace, on a tmpfs of its own (a journal's thread would make figures differ), and what lies
// outside.
func layOut() error {
	if err := errors.Join(os.MkdirAll(workspace, 0o755), os.MkdirAll(secret, 0o755)); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", workspace, "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount %s: %w", workspace, err)
	}
	deepest := filepath.Dir(fileAt(depths[len(depths)-1]))
	if err := os.MkdirAll(deepest, 0o755); err != nil {
		return err
	}
	files := []string{secret + "/file"}
	for _, depth := range depths {
		files = append(files, fileAt(depth))
	}
	for i := range manyGrants {
		files = append(files, fmt.Sprintf("%s/grant-%d", secret, i))
	}
	for _, name := range files {
		if err := os.WriteFile(name, []byte("text\n"), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// attachEmpty attaches a program that does nothing to file_open: what any program costs.
func attachEmpty() (detach func() error, err error) {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "empty", Type: ebpf.LSM, AttachType: ebpf.AttachLSMMac, AttachTo: "file_open", License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		return nil, fmt.Errorf("load an empty program: %w", err)
	}
	l, err := link.AttachLSM(link.LSMOptions{Program: program})
	if err != nil {
		return nil, fmt.Errorf("attach an empty program: %w", err)
	}
	return func() error { return errors.Join(l.Close(), program.Close()) }, nil
}

// makeJail makes a cgroup and a jail on it: the workspace, the programs, and further files up to that many grants.
func makeJail(e *loader.Enforcer, name string, grants int) (*os.File, error) {
	path := "/sys/fs/cgroup/bench-" + name
	if err := os.Mkdir(path, 0o755); err != nil {
		return nil, err
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	objects := []engine.Object{
		{Path: workspace, Rights: engine.AllRights, Source: engine.SourceWorkspace},
		{Path: programs, Rights: engine.Read | engine.Exec, Source: engine.SourcePolicy},
	}
	for i := range grants - 1 {
		objects = append(objects, engine.Object{Path: fmt.Sprintf("%s/grant-%d", secret, i), Rights: engine.Read, Source: engine.SourcePolicy})
	}
	_, err = e.CreateJail(loader.JailSpec{Cgroup: dir, CgroupPath: path, Sets: engine.AllowedSets{
		Workspace: engine.WorkspaceIdentity{CanonicalRoot: workspace}, Objects: objects,
	}})
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// measure measures everything in one state, in a subject of its own.
func (r *results) measure(state string, cgroup *os.File, landlock bool) error {
	p, err := startSubject(r.rounds, cgroup)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "bench: %s (the clock says %d ms)\n", state, now()/1e6)
	costs := map[string]int64{}
	r.Costs[state] = costs
	do := func(name string, words ...string) {
		if err == nil {
			costs[name], err = p.do(words...)
		}
	}
	if landlock {
		do("", "landlock", workspace)
		delete(costs, "")
	}
	for _, depth := range depths {
		do(openAt(depth), "open", fileAt(depth))
	}
	for _, depth := range depths {
		do(firstAt(depth), "first", fileAt(depth))
	}
	do("stat", "stat", fileAt(9))
	do("create and unlink", "create", filepath.Dir(fileAt(9))+"/new")
	do("rename", "rename", fileAt(9))
	do("exec", "exec", programs+"/true")
	if landlock || cgroup != nil {
		do("denied open", "denied", secret+"/file")
	} else {
		do("denied open", "open", secret+"/file")
	}
	if err = errors.Join(err, p.stop()); err != nil {
		return fmt.Errorf("%s: %w", state, err)
	}
	return nil
}
