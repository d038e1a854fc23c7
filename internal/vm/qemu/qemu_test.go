//go:build linux

package qemu

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/thenforce/thenforce/internal/vm/guest"
)

// fakeQEMU puts a shell script in QEMU's place for the test. The serial ports
// are its descriptors 3 (console), 4 (output) and 5 (reports), as in QEMU.
func fakeQEMU(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "qemu-system-x86_64"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func machine() Machine {
	return Machine{Kernel: "/k", Initramfs: "/i", Memory: "1G", Boot: 20 * time.Second, Total: 30 * time.Second, Output: new(bytes.Buffer), NoKVM: true}
}

const (
	started = `echo '{"started":{"release":"6.1"}}' >&5;`
	record  = `echo '{"record":{"release":"6.1","programs":[{"name":"x","exit":3}]}}' >&5;`
)

func TestRun(t *testing.T) {
	fakeQEMU(t, `echo 'kernel says' >&3; echo 'program says' >&4;`+started+`echo noise >&5; printf '{"started' >&5; echo >&5;`+record)
	m := machine()
	var console bytes.Buffer
	m.Console = &console
	out, err := m.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !out.Started || out.Record == nil || len(out.Record.Programs) != 1 || out.Record.Programs[0].Exit != 3 {
		t.Errorf("outcome %+v", out)
	}
	if out.Console != "kernel says\n" || console.String() != out.Console {
		t.Errorf("console %q, shown %q", out.Console, console.String())
	}
	if got := m.Output.(*bytes.Buffer).String(); got != "program says\n" {
		t.Errorf("output %q", got)
	}
	if out.Boot <= 0 || out.Total < out.Boot || out.Expired != "" {
		t.Errorf("times %s, %s, expired %q", out.Boot, out.Total, out.Expired)
	}
}

// QEMU ends well, whatever became of the guest: only a record is a success.
func TestRunWithoutRecord(t *testing.T) {
	fakeQEMU(t, started+"exit 0")
	out, err := machine().Run(t.Context())
	if err != nil || !out.Started || out.Record != nil {
		t.Errorf("outcome %+v, %v", out, err)
	}
	fakeQEMU(t, "echo 'Kernel panic' >&3")
	out, err = machine().Run(t.Context())
	if err != nil || out.Started || out.Console != "Kernel panic\n" {
		t.Errorf("outcome %+v, %v", out, err)
	}
}

func TestRunLimits(t *testing.T) {
	for _, c := range []struct {
		script      string
		boot, total time.Duration
		want        string
		started     bool
	}{
		{"exec sleep 60", 100 * time.Millisecond, time.Minute, "init did not report within 100ms", false},
		{started + "exec sleep 60", time.Minute, 300 * time.Millisecond, "not done within 300ms", true},
	} {
		fakeQEMU(t, c.script)
		m := machine()
		m.Boot, m.Total = c.boot, c.total
		begin := time.Now()
		out, err := m.Run(t.Context())
		if err != nil || out.Expired != c.want || out.Started != c.started {
			t.Errorf("%s: %+v, %v; want it expired: %s", c.script, out, err, c.want)
		}
		if took := time.Since(begin); took > 20*time.Second {
			t.Errorf("%s: took %s", c.script, took)
		}
	}
}

func TestRunErrors(t *testing.T) {
	fakeQEMU(t, "echo 'bad option' >&2; exit 1")
	if out, err := machine().Run(t.Context()); !errors.Is(err, ErrQEMU) || !strings.Contains(err.Error(), "bad option") {
		t.Errorf("QEMU fails: %+v, %v", out, err)
	}
	t.Setenv("PATH", t.TempDir())
	if out, err := machine().Run(t.Context()); !errors.Is(err, ErrQEMU) {
		t.Errorf("no QEMU: %+v, %v", out, err)
	}
}

func TestRunCancelled(t *testing.T) {
	fakeQEMU(t, "exec sleep 60")
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	time.AfterFunc(100*time.Millisecond, func() { cancel(why) })
	if out, err := machine().Run(ctx); !errors.Is(err, why) {
		t.Errorf("%+v, %v; want the cause", out, err)
	}
}

func TestRunInputAndResize(t *testing.T) {
	fakeQEMU(t, started+`read line <&4; echo "typed $line" >&4; read empty <&5; read size <&5; echo "$size" >&4;`+record)
	m := machine()
	m.Input = strings.NewReader("hello\n")
	sizes := make(chan guest.Size, 1)
	sizes <- guest.Size{Rows: 5, Cols: 6}
	m.Resize = sizes
	out, err := m.Run(t.Context())
	if err != nil || out.Record == nil {
		t.Fatalf("%+v, %v", out, err)
	}
	if got, want := m.Output.(*bytes.Buffer).String(), "typed hello\n{\"resize\":{\"rows\":5,\"cols\":6}}\n"; got != want {
		t.Errorf("output %q, want %q", got, want)
	}
}

func TestArgs(t *testing.T) {
	has := func(args []string, flag, value string) bool {
		for i := range len(args) - 1 {
			if args[i] == flag && args[i+1] == value {
				return true
			}
		}
		return false
	}
	m := machine()
	m.Append = "lsm=yama"
	m.Disks = []Disk{{Path: "/a,b"}, {Path: "/c", Shared: true}}
	args := m.args()
	for _, want := range [][2]string{
		{"-accel", "tcg,thread=multi"}, {"-smp", "1"}, {"-m", "1G"},
		{"-drive", "file=/a,,b,format=raw,if=none,cache=unsafe,id=disk0"},
		{"-drive", "file=/c,format=raw,if=none,cache=unsafe,id=disk1,snapshot=on"},
		{"-device", "nvme,drive=disk1,serial=disk1"},
		{"-serial", "chardev:port2"},
	} {
		if !has(args, want[0], want[1]) {
			t.Errorf("no %s %s in %q", want[0], want[1], args)
		}
	}
	if slices.Contains(args, "kvm") {
		t.Error("KVM in spite of NoKVM")
	}
	if line := m.commandLine(); !strings.HasSuffix(line, " lsm=yama") || !strings.Contains(line, "panic=-1") {
		t.Errorf("command line %q", line)
	}
	m.Count, m.CPUs = true, 4
	args = m.args()
	if !has(args, "-icount", "shift=0,sleep=off") || !has(args, "-accel", "tcg,thread=single") || !has(args, "-smp", "1") {
		t.Errorf("counting: %q", args)
	}
}

func TestHasVirtualisation(t *testing.T) {
	for _, c := range []struct {
		cpuinfo string
		want    bool
	}{
		{"processor\t: 0\nflags\t\t: fpu vmx sse\n", true},
		{"flags\t\t: fpu svm\n", true},
		{"flags\t\t: fpu svm_lock hypervisor vmx_x\nmodel name\t: vmx\nvmx flags\t: vnmi\n", false},
		{"", false},
	} {
		if got := hasVirtualisation(c.cpuinfo); got != c.want {
			t.Errorf("%q: %v", c.cpuinfo, got)
		}
	}
}
