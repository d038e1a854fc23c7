// SPDX-License-Identifier: Apache-2.0

package mountmap

import (
	"fmt"
	"strconv"
)

// The kernel keeps 12 bits of major and 20 bits of minor number in a dev_t
// (MINORBITS in include/linux/kdev_t.h).
const (
	minorBits = 20
	maxMajor  = 1<<12 - 1
	maxMinor  = 1<<minorBits - 1
)

// KernelDev is a device number as the kernel keeps it in super_block.s_dev:
// major<<20 | minor. It is what mountinfo prints as major:minor and what a BPF
// program reads.
type KernelDev uint32

// MakeKernelDev returns the device number of major and minor. It reports false
// where one of them does not fit the kernel's 12 and 20 bits.
func MakeKernelDev(major, minor uint32) (KernelDev, bool) {
	if major > maxMajor || minor > maxMinor {
		return 0, false
	}
	return KernelDev(major<<minorBits | minor), true
}

// Major returns the upper 12 bits.
func (d KernelDev) Major() uint32 { return uint32(d) >> minorBits }

// Minor returns the lower 20 bits.
func (d KernelDev) Minor() uint32 { return uint32(d) & maxMinor }

// String returns "major:minor", as in mountinfo.
func (d KernelDev) String() string {
	return strconv.FormatUint(uint64(d.Major()), 10) + ":" + strconv.FormatUint(uint64(d.Minor()), 10)
}

// MarshalText writes "major:minor".
func (d KernelDev) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads "major:minor".
func (d *KernelDev) UnmarshalText(text []byte) error {
	v, err := parseDev(string(text))
	if err != nil {
		return err
	}
	*d = v
	return nil
}

// Stat returns the st_dev of an ordinary file on a file system whose
// super_block.s_dev is d. On btrfs, and for files of an overlay, stat(2)
// returns another device than this; see [StatDev.Kernel].
func (d KernelDev) Stat() StatDev {
	// huge_encode_dev, include/linux/kdev_t.h: the low 8 bits of the minor
	// number, 12 of the major, the other 12 of the minor above them.
	major, minor := uint64(d.Major()), uint64(d.Minor())
	return StatDev(minor&0xff | major<<8 | (minor&^0xff)<<12)
}

// StatDev is a device number as stat(2) gives it in st_dev. On Linux it is
// encoded otherwise than a [KernelDev]; on Windows it is the serial number of
// the volume. It may be compared with another StatDev of the same system and
// with nothing else.
type StatDev uint64

// Kernel returns d in the kernel's own encoding. It reports false where d is
// no number that Linux could have produced.
//
// The result is the device of the file system only where stat(2) reports that.
// btrfs gives every subvolume an anonymous device of its own that appears in no
// mount table, and a file on overlayfs may carry the device of its layer or one
// made up for it (Documentation/filesystems/overlayfs.rst, "Inode
// properties"). So the conversion serves to compare with a mount table where a
// kernel has no mount ids to offer, and a difference means only "not
// confirmed".
func (d StatDev) Kernel() (KernelDev, bool) {
	// The inverse of huge_encode_dev. glibc's dev_t has room for larger
	// numbers; Linux file systems never use it.
	if d>>32 != 0 {
		return 0, false
	}
	major := uint32(d>>8) & maxMajor
	minor := uint32(d)&0xff | uint32(d>>12)&^0xff
	return MakeKernelDev(major, minor)
}

// String returns the number in decimal. It is not split into major and minor:
// that would look like a [KernelDev], and it is none.
func (d StatDev) String() string { return strconv.FormatUint(uint64(d), 10) }

// MarshalText writes the number in decimal.
func (d StatDev) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a decimal number.
func (d *StatDev) UnmarshalText(text []byte) error {
	v, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil {
		return fmt.Errorf("parse device %q: %w", text, err)
	}
	*d = StatDev(v)
	return nil
}
