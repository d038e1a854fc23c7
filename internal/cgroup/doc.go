// Package cgroup makes, empties and removes the cgroups that jails live in, on hosts where thenforce itself manages
// them: <v2 mount>/thenforce/<id>. Linux only; on other systems the package is empty.
//
// A [Group] works on a descriptor of its directory, so what it reads, signals and removes stays the same cgroup
// whatever is mounted over the path later. Processes are found for the whole subtree, because a jail is the whole
// subtree.
//
// Nothing here needs cgroup v2 to be the only hierarchy: on hybrid hosts (v1 controllers, v2 mounted beside them,
// commonly on /sys/fs/cgroup/unified) everything works but limits, whose controllers v1 has taken; asking for one
// there is a [LimitError], never a limit that silently does not hold.
package cgroup
