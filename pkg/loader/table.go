package loader

import "fmt"

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
	12: "the operation is forbidden in every jail",
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
}

// hookNames has the kernel's names, without the prefix bpf_lsm_, by hook id.
var hookNames = [...]string{
	0: "file_open", 1: "path_mknod", 2: "path_mkdir", 3: "path_symlink", 4: "path_unlink", 5: "path_rmdir",
	6: "path_link", 7: "path_rename", 8: "path_truncate", 9: "path_chmod", 10: "path_chown",
}

func nameIn(table []string, id int) string {
	if id < 0 || id >= len(table) {
		return fmt.Sprintf("unknown-%d", id)
	}
	return table[id]
}

// attachment is one program that has to be attached for enforcement to be whole.
type attachment struct {
	name       string // as in status: the hook's or tracepoint's name
	program    string // in the object file
	hook       int    // hook id; -1 for a tracepoint
	tracepoint bool
}

// attachments lists every program that is attached, in the order in which a proof holds them. All are required.
var attachments = func() []attachment {
	var list []attachment
	for id, name := range hookNames {
		list = append(list, attachment{name: name, program: "tf_" + name, hook: id})
	}
	for _, name := range []string{"cgroup_mkdir", "cgroup_rmdir"} {
		list = append(list, attachment{name: name, program: "tf_" + name, hook: -1, tracepoint: true})
	}
	return list
}()
