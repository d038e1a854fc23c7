// SPDX-License-Identifier: Apache-2.0

package mountmap

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// TestLive compares the table with what statx(2) says of each mount point.
func TestLive(t *testing.T) {
	live, err := OpenLive()
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	table, err := live.Table()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := live.Table(); err != nil || again != table {
		t.Errorf("a second look at the same table = %p, %v; want %p again", again, err, table)
	}
	compared := 0
	for m := range table.All() {
		top, ok := table.At(m.Point)
		if !ok || top.ID != m.ID {
			continue // hidden
		}
		var st unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, m.Point, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID, &st); err != nil {
			t.Logf("%s: %v", m.Point, err) // a mount point that this user cannot reach
			continue
		}
		if st.Mask&unix.STATX_MNT_ID == 0 {
			t.Logf("%s: no mount id before Linux 5.8", m.Point)
			continue
		}
		compared++
		if st.Mnt_id != m.ID || st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
			t.Errorf("%s: statx says mount %d, the table %d on top", m.Point, st.Mnt_id, m.ID)
		}
		if err := unix.Statx(unix.AT_FDCWD, m.Point, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID_UNIQUE, &st); err == nil && st.Mask&unix.STATX_MNT_ID_UNIQUE != 0 {
			if got, ok := table.ByUniqueID(st.Mnt_id); !ok || got.ID != m.ID {
				t.Errorf("%s: unique id %d leads to %+v, %v", m.Point, st.Mnt_id, got, ok)
			}
		}
	}
	if compared == 0 {
		t.Error("no mount was compared")
	}
}

func TestReadUntrusted(t *testing.T) {
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(root)
	if err := provenProcfs(root); !errors.Is(err, ErrUntrusted) {
		t.Errorf("the root directory as a procfs: %v", err)
	}
}

// TestOpenBelow takes the way of kernels without openat2.
func TestOpenBelow(t *testing.T) {
	proc, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(proc)
	fd, err := openBelow(proc, "thread-self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "mountinfo")
	defer file.Close()
	if _, err := Parse(file); err != nil {
		t.Error(err)
	}
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(root)
	if fd, err := openBelow(root, "proc/thread-self/mountinfo"); !errors.Is(err, ErrUntrusted) {
		unix.Close(fd)
		t.Errorf("a file on another mount: %v; want ErrUntrusted", err)
	}
}

func TestWatcherStops(t *testing.T) {
	w, err := NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	for {
		// The host may mount something just now.
		if err := w.Wait(ctx); err != nil {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Wait = %v", err)
			}
			return
		}
	}
}

func TestClosed(t *testing.T) {
	live, err := OpenLive()
	if err != nil {
		t.Fatal(err)
	}
	live.Close()
	if table, err := live.Table(); err == nil {
		t.Errorf("a closed table gave %v", table)
	}
}

// TestAgreesWithMoby compares with another parser where both accept.
func TestAgreesWithMoby(t *testing.T) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		string(text),
		rootLine + `40 27 0:30 /a\134b /s\040p/t\011a rw,nosuid shared:3 master:4 - fuse.x a\043b rw,x=y` + "\n",
	} {
		table, err := Parse(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := mountinfo.GetMountsFromReader(strings.NewReader(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(theirs) != table.Len() {
			t.Fatalf("%d mounts, moby has %d", table.Len(), len(theirs))
		}
		for i, m := range table.mounts {
			o := theirs[i]
			dev, _ := MakeKernelDev(uint32(o.Major), uint32(o.Minor))
			want := Mount{ID: uint64(o.ID), ParentID: uint64(o.Parent), Dev: dev, Root: o.Root, Point: o.Mountpoint,
				Options: o.Options, Propagation: m.Propagation, FSType: o.FSType, Source: o.Source, SuperOptions: o.VFSOptions}
			if diff := cmp.Diff(want, m); diff != "" {
				t.Errorf("line %d (-moby +ours):\n%s", i+1, diff)
			}
		}
	}
}

func BenchmarkLiveTable(b *testing.B) {
	live, err := OpenLive()
	if err != nil {
		b.Fatal(err)
	}
	defer live.Close()
	if _, err := live.Table(); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := live.Table(); err != nil {
			b.Fatal(err)
		}
	}
}
