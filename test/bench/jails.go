//go:build linux

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/cilium/ebpf"
	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/loader"
	"golang.org/x/sys/unix"
)

const (
	largePolicy = 1000 // grants
	samples     = 5
)

// crowd makes and ends jails, and knows what that costs.
type crowd struct {
	enforcer *loader.Enforcer
	made     int
	costs    map[string][]int64 // by operation, one for each number of live jails
	names    []string           // of the operations, in order
}

// measureJails measures what jails cost to make, change, list and end while others live, and what memory they take.
func measureJails(args []string, w io.Writer) error {
	flags := flag.NewFlagSet("jails", flag.ContinueOnError)
	most := flags.Int("jails", 1000, "at the end `N` are live, of 10 grants each")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := layOutGrants(); err != nil {
		return err
	}
	account, err := joinAccount()
	if err != nil {
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
	debug.SetGCPercent(-1) // the collector's work would count in some rounds and not in others
	c := &crowd{enforcer: enforcer, costs: map[string][]int64{}}
	levels := []int{0, *most / 10, *most}
	var memory []memoryUse
	live := 0
	for _, level := range levels {
		fmt.Fprintf(os.Stderr, "bench: %d jails (the clock says %d ms)\n", level, now()/1e6)
		// The cgroups come first: what they take is not the jails'.
		var dirs []*os.File
		for ; live < level; live++ {
			dir, err := c.cgroup()
			if err != nil {
				return err
			}
			dirs = append(dirs, dir)
		}
		before, err := account.use()
		if err != nil {
			return err
		}
		for _, dir := range dirs {
			if _, err := c.create(dir, 10); err != nil {
				return err
			}
			dir.Close()
		}
		after, err := account.use()
		if err != nil {
			return err
		}
		if len(dirs) > 0 {
			memory = append(memory, after.less(before).by(len(dirs)))
		}
		if err := c.measure(); err != nil {
			return err
		}
		runtime.GC()
	}
	c.print(w, levels)
	last := memory[len(memory)-1]
	fmt.Fprintf(w, "\nmemory of one jail with 10 grants, in bytes: %d of the kernel's (memory.stat, kernel), of that in maps %d (fdinfo, memlock); %d of files\n",
		last.kernel, last.maps, last.files)
	return nil
}

// layOutGrants makes a workspace and what a large policy names.
func layOutGrants() error {
	if err := errors.Join(os.MkdirAll(workspace, 0o755), os.MkdirAll(secret, 0o755)); err != nil {
		return err
	}
	for i := range largePolicy {
		if err := os.WriteFile(grantFile(i), []byte("text\n"), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func grantFile(i int) string { return fmt.Sprintf("%s/grant-%d", secret, i) }

// cgroup makes one for a jail.
func (c *crowd) cgroup() (*os.File, error) {
	path := fmt.Sprintf("/sys/fs/cgroup/bench-%d", c.made)
	c.made++
	if err := os.Mkdir(path, 0o755); err != nil {
		return nil, err
	}
	return os.Open(path)
}

// spec is a policy of so many grants, the workspace among them.
func spec(grants int) loader.JailSpec {
	objects := []engine.Object{{Path: workspace, Rights: engine.AllRights, Source: engine.SourceWorkspace}}
	for i := range grants - 1 {
		objects = append(objects, engine.Object{Path: grantFile(i), Rights: engine.Read, Source: engine.SourcePolicy})
	}
	return loader.JailSpec{Sets: engine.AllowedSets{Workspace: engine.WorkspaceIdentity{CanonicalRoot: workspace}, Objects: objects}}
}

func (c *crowd) create(dir *os.File, grants int) (*loader.Jail, error) {
	s := spec(grants)
	s.Cgroup, s.CgroupPath = dir, dir.Name()
	return c.enforcer.CreateJail(s)
}

// measure goes through the operations with the jails there are.
func (c *crowd) measure() error {
	made := map[string]int64{}
	least := func(name string, cost int64) {
		if _, ok := c.costs[name]; !ok {
			c.names = append(c.names, name)
			c.costs[name] = nil
		}
		if best, ok := made[name]; !ok || cost < best {
			made[name] = cost
		}
	}
	defer func() {
		for name, cost := range made {
			c.costs[name] = append(c.costs[name], cost)
		}
	}()
	var failed error
	timed := func(name string, do func() error) {
		if failed != nil {
			return
		}
		start := executed()
		failed = do()
		least(name, executed()-start)
	}
	for range samples {
		for _, grants := range []int{1, 10, largePolicy} {
			dir, err := c.cgroup()
			if err != nil {
				return err
			}
			s, jail := spec(grants), (*loader.Jail)(nil)
			timed(fmt.Sprintf("create, %d grants", grants), func() (err error) {
				jail, err = c.create(dir, grants)
				return err
			})
			if grants == largePolicy {
				timed("replace, 1000 grants by 1000", func() error {
					_, err := c.enforcer.Replace(jail.ID, s)
					return err
				})
			}
			timed(fmt.Sprintf("delete, %d grants", grants), func() error { return c.enforcer.DeleteJail(jail.ID) })
			if err := errors.Join(failed, dir.Close(), os.Remove(dir.Name())); err != nil {
				return err
			}
		}
		timed("list", func() error {
			_, err := c.enforcer.Jails()
			return err
		})
		for name, args := range map[string][]string{
			"thenforce jail list":         {"thenforce", "jail", "list", "--json"},
			"thenforce run, start to end": {"thenforce", "run", "--workspace", workspace, "--", "true"},
		} {
			cost, err := once(args)
			if err != nil {
				return err
			}
			least(name, cost[3])
		}
	}
	return failed
}

// executed is what this process has executed by now.
func executed() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

func (c *crowd) print(w io.Writer, levels []int) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "executed instructions, least of %d, Linux %s; live jails:\t", samples, release())
	for _, level := range levels {
		fmt.Fprintf(table, "%d\t", level)
	}
	fmt.Fprintln(table)
	for _, name := range c.names {
		fmt.Fprintf(table, "%s\t", name)
		for _, cost := range c.costs[name] {
			fmt.Fprintf(table, "%d\t", cost)
		}
		fmt.Fprintln(table)
	}
	table.Flush()
}

// memoryUse is what the enforcer takes, in bytes.
type memoryUse struct{ kernel, maps, files int64 }

func (m memoryUse) less(o memoryUse) memoryUse {
	return memoryUse{m.kernel - o.kernel, m.maps - o.maps, m.files - o.files}
}

func (m memoryUse) by(n int) memoryUse {
	return memoryUse{m.kernel / int64(n), m.maps / int64(n), m.files / int64(n)}
}

// account is a cgroup whose memory is accounted: maps are charged to the one that made them.
type account string

// joinAccount puts this process into one.
func joinAccount() (account, error) {
	const path = "/sys/fs/cgroup/bench-account"
	if err := os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+memory"), 0); err != nil {
		return "", err
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		return "", err
	}
	return path, os.WriteFile(path+"/cgroup.procs", []byte(strconv.Itoa(os.Getpid())), 0)
}

func (a account) use() (u memoryUse, err error) {
	text, err := os.ReadFile(filepath.Join(string(a), "memory.stat"))
	if err != nil {
		return u, err
	}
	if u.kernel, err = field(string(text), "kernel "); err != nil {
		return u, err
	}
	if u.maps, err = mapsMemory(); err != nil {
		return u, err
	}
	err = filepath.WalkDir("/run/thenforce", func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			u.files += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return err
	})
	return u, err
}

// mapsMemory sums up what the kernel says that the pinned maps take. (Before Linux 6.4 it says what they would take when
// they are full.)
func mapsMemory() (int64, error) {
	pins, err := filepath.Glob("/sys/fs/bpf/thenforce/v*/tf_*")
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, pin := range pins {
		m, err := ebpf.LoadPinnedMap(pin, nil)
		if err != nil {
			continue // a program
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", m.FD()))
		m.Close()
		if err != nil {
			return 0, err
		}
		n, err := field(string(text), "memlock:")
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// field finds a line that begins with a name, and gives the number behind it.
func field(text, name string) (int64, error) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
		}
	}
	return 0, fmt.Errorf("no line %q", name)
}
