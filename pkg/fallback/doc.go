// SPDX-License-Identifier: Apache-2.0

// Package fallback is what works without the kernel's help: the live
// file-system probes of the engine and opens that cannot be led out of a
// workspace, on Linux, macOS and Windows.
//
// [NewProbes] gives the probes that engine.Bind, engine.CheckContainment and
// engine.Compile look at the running system with:
//
//	probes, err := fallback.NewProbes()
//	if err != nil { ... } // a system this package does not know
//	defer probes.Close()
//	workspace := engine.Bind("/srv/repo", probes)
//	decision := engine.CheckContainment(workspace, "src/main.go", engine.ContainmentOptions{}, probes)
//
// # What the probes promise
//
// [Probes.Inspect] describes the object at a path and never follows a link in
// its last place; the engine inspects every component from the root down, so it
// meets every link before anything is looked up through it. What cannot be
// looked at is an error and no guess: the engine answers enforcement-unverified.
//
// On Linux an inspection is one statx(2). The id of the mount that an object
// was reached on decides where mounts begin: the unique one where the kernel and
// the mount table both have it (Linux 6.8), else the one that is reused after an
// unmount (5.8); before that there are device numbers only. The mount table is
// kept while poll(2) on it proves that nothing changed.
package fallback
