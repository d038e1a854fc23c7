// SPDX-License-Identifier: Apache-2.0

// Package mountmap reads the kernel's mount table and answers where mounts begin.
//
// A [Table] is an immutable snapshot. [Parse] makes one from text in the form
// of proc_pid_mountinfo(5), [New] from values, and [Read] from the running
// Linux kernel. Two questions matter to its users: which mount is on top at
// exactly this path ([Table.At]), and on which mount does this path lie
// ([Table.Lookup]). Both are answered the way the kernel answers them, along
// the parent ids from the root of the namespace, so a mount that a later mount
// hides does not answer.
//
//	table, err := mountmap.Read()
//	if err != nil {
//		return err // never a guess, never an empty table
//	}
//	m, ok := table.At("/srv/repo/data") // ok: something is mounted just there
//
// # What is an error
//
// Everything that is not understood. A line that is cut short, a number that
// is none, an id that appears twice and an empty file are each a [*ParseError]
// with the line number; a procfs that is not proven to be the kernel's is
// [ErrUntrusted]; a system without a mount table is [ErrNotSupported]. A caller
// that gets no table must treat every question about mounts as unanswered.
//
// # Two kinds of device number
//
// [KernelDev] is super_block.s_dev, what mountinfo and BPF programs see.
// [StatDev] is st_dev as stat(2) gives it. They differ in encoding, and on
// btrfs and overlayfs also in value; see [StatDev.Kernel].
package mountmap
