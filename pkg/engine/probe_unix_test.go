// SPDX-License-Identifier: Apache-2.0

//go:build unix

package engine_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/thenforce/thenforce/pkg/engine"
)

func TestKindOfMode(t *testing.T) {
	for mode, want := range map[uint32]engine.Kind{
		unix.S_IFREG: engine.KindFile, unix.S_IFDIR: engine.KindDir, unix.S_IFLNK: engine.KindSymlink,
		unix.S_IFIFO: engine.KindFIFO, unix.S_IFSOCK: engine.KindSocket, unix.S_IFCHR: engine.KindCharDevice,
		unix.S_IFBLK: engine.KindBlockDevice, 0: engine.KindOther, unix.S_IFMT: engine.KindOther,
	} {
		if got := engine.KindOfMode(mode | unix.S_ISUID | 0o644); got != want {
			t.Errorf("the kind of mode %#o is %s, want %s", mode, got, want)
		}
	}
}
