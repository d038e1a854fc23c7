package loader

import (
	"fmt"
	"slices"
)

// ABI is the version of the maps' layout. It names the pin folder; another ABI never touches this one's pins.
const ABI = 1

// Event codes: why an operation was denied. They are stable.
var codeNames = [...]string{
	0: "ok", 1: "no-grant", 2: "rights", 3: "rights-gain", 4: "denied-name", 5: "mount-boundary", 6: "disconnected",
	7: "generation", 8: "expired", 9: "depth", 10: "device-node", 11: "other-jail", 12: "forbidden-operation",
	13: "ioctl", 14: "no-data",
}

var codeReasons = [...]string{
	0:  "allowed",
	1:  "the object lies in no granted tree",
	2:  "the grant that holds the object lacks a right the operation needs",
	3:  "the object would gain rights at its new place",
	4:  "the name is denied",
	5:  "a mount point lies between the object and the grant",
	6:  "the object is not connected to the root of its mount",
	7:  "the granted object was removed and its inode number is another's now",
	8:  "the grant has expired",
	9:  "the object lies deeper than can be judged",
	10: "a device node is usable only where that very node is granted",
	11: "the object belongs to another jail",
	12: "the operation is forbidden in the jail, whatever its object",
	13: "the ioctl is not on the list of allowed ones",
	14: "the kernel had no data to judge by",
}

// CodeReason is the sentence for an event's code; for a token it does not know it says so.
func CodeReason(code string) string {
	for i, name := range codeNames {
		if name == code {
			return codeReasons[i]
		}
	}
	return fmt.Sprintf("code %q is unknown to this build", code)
}

var opNames = [...]string{
	0: "read", 1: "write", 2: "exec", 3: "create", 4: "delete", 5: "link", 6: "rename", 7: "attributes",
	8: "connect", 9: "ioctl", 10: "receive", 11: "watch", 12: "mount", 13: "trace", 14: "signal",
	15: "priority", 16: "cgroup", 17: "kernel", 18: "follow",
}

// hookNames has the kernel's names, without the prefix bpf_lsm_, by hook id.
var hookNames = [...]string{
	0: "file_open", 1: "path_mknod", 2: "path_mkdir", 3: "path_symlink", 4: "path_unlink", 5: "path_rmdir",
	6: "path_link", 7: "path_rename", 8: "path_truncate", 9: "path_chmod", 10: "path_chown",
	11: "inode_setattr", 12: "inode_setxattr", 13: "inode_removexattr", 14: "inode_set_acl",
	15: "inode_remove_acl", 16: "inode_file_setattr", 17: "file_ioctl", 18: "file_ioctl_compat",
	19: "file_fcntl", 20: "file_receive", 21: "mmap_file", 22: "file_mprotect", 23: "path_notify",
	24: "sb_mount", 25: "sb_remount", 26: "sb_umount", 27: "sb_pivotroot", 28: "move_mount", 29: "path_chroot",
	30: "ptrace_access_check", 31: "ptrace_traceme", 32: "task_kill", 33: "file_send_sigiotask",
	34: "task_setrlimit", 35: "task_setnice", 36: "task_setscheduler", 37: "task_setioprio", 38: "task_alloc",
	39: "unix_stream_connect", 40: "unix_may_send", 41: "bpf", 42: "perf_event_open",
	43: "kernel_module_request", 44: "capable", 45: "uring_override_creds", 46: "sb_kern_mount",
	47: "fs_context_parse_param", 48: "task_setpgid", 49: "inode_follow_link",
}

// EventCodes gives the codes that events have.
func EventCodes() []string { return slices.Clone(codeNames[1:]) }

// EventOps gives the operations that events have.
func EventOps() []string { return slices.Clone(opNames[:]) }

func nameIn(table []string, id int) string {
	if id < 0 || id >= len(table) {
		return fmt.Sprintf("unknown-%d", id)
	}
	return table[id]
}

// kind is how a program is attached.
type kind uint8

const (
	lsmHook kind = iota
	tracepoint
	function     // at its entry
	functionExit // when it returns
)

// attachment is one thing that a program is attached to.
type attachment struct {
	name string // as in status: the hook's, tracepoint's or function's name
	kind kind
	hook int // hook id; -1 where the program makes no verdict
	// programs are the ones to choose from, by the number of arguments the hook has on the running kernel; 0 fits any.
	programs map[int]string
	// newer is set for hooks that not every supported kernel has. Where the hook is missing, so is the operation.
	newer bool
	// onDemand is set for hooks that are attached only while a jail needs them: a call costs every process.
	onDemand bool
}

// attachments lists everything that is attached, in the order in which a proof holds it. New ones are added at the end.
var attachments = func() []attachment {
	variants := map[string]map[int]string{
		"inode_setattr":   {3: "tf_inode_setattr", 2: "tf_inode_setattr_old"},
		"bpf":             {3: "tf_bpf", 4: "tf_bpf_kernel_arg"},
		"perf_event_open": {1: "tf_perf_event_open", 2: "tf_perf_event_open_old"},
	}
	newer := map[string]bool{
		"inode_set_acl": true, "inode_remove_acl": true, "inode_file_setattr": true, "file_ioctl_compat": true,
	}
	var list []attachment
	for id, name := range hookNames {
		if name == followLink {
			continue
		}
		a := attachment{name: name, kind: lsmHook, hook: id, programs: variants[name], newer: newer[name]}
		if a.programs == nil {
			a.programs = map[int]string{0: "tf_" + name}
		}
		list = append(list, a)
	}
	// What makes no verdict.
	for _, a := range []attachment{
		{name: "cgroup_mkdir", kind: tracepoint},
		{name: "cgroup_rmdir", kind: tracepoint},
		{name: "devpts_pty_kill", kind: function},
		{name: "bprm_check_security", kind: lsmHook},
		{name: "sched_process_free", kind: tracepoint},
		{name: "d_delete", kind: function},
		{name: "vfs_rename", kind: functionExit},
		{name: "sb_delete", kind: lsmHook},
	} {
		a.hook, a.programs = -1, map[int]string{0: "tf_" + a.name}
		list = append(list, a)
	}
	return append(list, attachment{
		name: followLink, kind: lsmHook, hook: slices.Index(hookNames[:], followLink), onDemand: true,
		programs: map[int]string{0: "tf_" + followLink},
	})
}()

const followLink = "inode_follow_link"
