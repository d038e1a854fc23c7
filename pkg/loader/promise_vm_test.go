//go:build vm

package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

type row struct {
	operation string
	errno     unix.Errno
	code      string
	path      string // "-": none; "*": some; "(fs)": from the root of the file system, as the hook has no mount
}

// The product's promise in one table: what a process in a jail tries, and what comes of it. A row has the operation, the
// errno it ends with, and the code and the path of the one event that tells of it; an empty path is the operation's last
// word. An allowed row has no code, and no event appears. What an operation is, says operations in perform_linux.go and
// moreOperations in operations_vm_linux.go: its name is its system call in most cases. After a denied row everything
// around is as it was before.
//
// Where:
//
//	%IN      the workspace, all rights               %OUT      granted to nobody; %IN-evil too
//	%RO      a grant to be read                      %OTHER    another jail's workspace
//	%NONE    a grant of nothing inside the workspace %MNT      a part of the outside that the host bind-mounted into the workspace
//	%DENIED  a name in the workspace that is denied  %DEEP, %OUTDEEP  chains of directories; %IN:N, %OUT:N  paths of N bytes
//
// Who: %PEER is a process in the jail, %HOST one outside, %FOREIGN one in the other jail; all of the same user, root in
// one run and an ordinary one in the next. That one lives in a child cgroup that was made after the jail. Rows that begin
// with root are root's: the kernel would refuse others by itself; user is the ordinary one. Rows that begin with userns are done by root of a user
// namespace in the jail, which may mount there as far as the kernel goes.
//
// The numbers are those of the kinds of attack that the table goes by: getting out by opening, by links, by changes and so
// on. docs/threat-model.md links to them.
var promise = []row{
	// ---- 1. opening, however it is named
	{operation: "open %IN/file"},
	{operation: "openw %IN/file"},
	{operation: "openrw %IN/file"},
	{operation: "append %IN/file"},
	{operation: "open3 %IN/file"},
	{operation: "create %IN/created"},
	{operation: "create %IN/file"},
	{operation: "tmpfile %IN"},
	{operation: "open %RO/file"},
	{operation: "open %RO"},
	{"openw %RO/file", eacces, "rights", ""},
	{"openrw %RO/file", eacces, "rights", ""},
	{"append %RO/file", eacces, "rights", ""},
	{"opentrunc %RO/file", eacces, "rights", ""},
	{"open3 %RO/file", eacces, "rights", ""},
	{"create %RO/created", eacces, "rights", ""},
	{"tmpfile %RO", eacces, "rights", "(tmp)"},
	{"open %OUT/file", eacces, "no-grant", ""},
	{"openw %OUT/file", eacces, "no-grant", ""},
	{"openrw %OUT/file", eacces, "no-grant", ""},
	{"append %OUT/file", eacces, "no-grant", ""},
	{"opentrunc %OUT/file", eacces, "no-grant", ""},
	{"open3 %OUT/file", eacces, "no-grant", ""},
	{"create %OUT/created", eacces, "no-grant", ""},
	{"create %OUT/file", eacces, "no-grant", ""},
	{"tmpfile %OUT", eacces, "no-grant", "(tmp)"},
	{"open %OUT", eacces, "no-grant", ""},
	{"open %IN/..", eacces, "no-grant", "%BASE"},
	{"open %OTHER/file", eacces, "no-grant", ""},
	{"openw %OTHER/file", eacces, "no-grant", ""},
	{"open %NONE/file", eacces, "rights", ""},
	{"open %MNT/file", eacces, "mount-boundary", ""},
	{"openw %MNT/file", eacces, "mount-boundary", ""},
	{"open %MNT", eacces, "mount-boundary", ""},
	{"open %IN/to-out", eacces, "no-grant", "%OUT/file"},
	{"openw %IN/to-out", eacces, "no-grant", "%OUT/file"},
	{"create %IN/dangling", eacces, "no-grant", "%OUT/new"},
	{"open %IN/to-outdir/file", eacces, "no-grant", "%OUT/file"},
	{"open %IN/dir/up/out/file", eacces, "no-grant", "%OUT/file"},
	{"open %IN/to-root%OUT/file", eacces, "no-grant", "%OUT/file"},
	{"open %IN/../out/file", eacces, "no-grant", "%OUT/file"},
	{"open %IN/../in/../out/./file", eacces, "no-grant", "%OUT/file"},
	{operation: "open %RO/../in/file"},
	{"open %IN-evil/file", eacces, "no-grant", ""},
	{"open /proc/self/root%OUT/file", eacces, "no-grant", "%OUT/file"},
	{"open /proc/self/cwd%OUT/file", eacces, "no-grant", "%OUT/file"},
	{"open /proc/thread-self/root%OUT/file", eacces, "no-grant", "%OUT/file"},
	{"open /proc/%PEER/root%OUT/file", eacces, "no-grant", "%OUT/file"},
	{"open /proc/%PEER/cwd%OUT/file", eacces, "no-grant", "%OUT/file"},
	{"open /proc/%PEER/fd/3", eacces, "no-grant", "%OUT/file"},
	{operation: "open /proc/%PEER/root%IN/file"},
	{"open /proc/%HOST/root%OUT/file", eacces, "other-jail", "-"},
	{"open /proc/%HOST/root%IN/file", eacces, "other-jail", "-"},
	{"open /proc/%HOST/cwd", eacces, "other-jail", "-"},
	{"open /proc/%HOST/exe", eacces, "other-jail", "-"},
	{"open /proc/%HOST/fd/0", eacces, "other-jail", "-"},
	{"reopen %OUT/file", eacces, "no-grant", "%OUT/file"},
	{"reopen %RO/../out/file", eacces, "no-grant", "%OUT/file"},
	{"below %OUT file", eacces, "no-grant", "%OUT/file"},
	{"below %OUT ../out/file", eacces, "no-grant", "%OUT/file"},
	{operation: "below %OUT ../in/file"},
	{"root handle %IN %OUT/file", eacces, "no-grant", "%OUT/file"},
	{operation: "root handle %IN %IN/file"},
	{"legacyreopen", eacces, "no-grant", "%OUT/file"},
	{"openheld file", eacces, "no-grant", "*"}, // a mount in the workspace that was lazily unmounted
	// Executing.
	{operation: "exec %IN/program"},
	{operation: "fexec %IN/program"},
	{operation: "exec %IN/script"},
	{operation: "memexec"},
	{"exec %OUT/program", eacces, "no-grant", ""},
	{"fexec %OUT/program", eacces, "no-grant", ""},
	{"execveat %OUT/program", eacces, "no-grant", ""},
	{"exec %IN/outer-script", eacces, "no-grant", "%OUT/program"},
	{"exec %RO/program", eacces, "rights", ""},
	{"exec %NONE/program", eacces, "rights", ""},
	{"exec %MNT/program", eacces, "mount-boundary", ""},
	{"exec /proc/%PEER/root%OUT/program", eacces, "no-grant", "%OUT/program"},
	{operation: "mapexec %IN/file"},
	{"mapexec %RO/file", eacces, "rights", ""},
	{operation: "protect %IN/file"},
	{"protect %RO/file", eacces, "rights", ""},
	{"legacymap", eacces, "no-grant", "%OUT/file"},
	// What is in /proc of oneself and one's peers, and what not.
	{operation: "open /proc"},
	{operation: "open /proc/self/status"},
	{operation: "open /proc/%PEER/status"},
	{operation: "open /proc/%PEER/environ"},
	{"open /proc/1", eacces, "no-grant", ""},
	{"open /proc/%HOST/status", eacces, "no-grant", ""},
	{"open /proc/%HOST/environ", eacces, "no-grant", ""},
	{"open /proc/%HOST/mem", eacces, "no-grant", ""},
	{"openrw /proc/%HOST/mem", eacces, "no-grant", ""},
	{"open /proc/%HOST/maps", eacces, "no-grant", ""},
	{"open /proc/%HOST/task/%HOST/status", eacces, "no-grant", ""},
	{"openw /proc/%HOST/oom_score_adj", eacces, "no-grant", ""},
	{"open /proc/%FOREIGN/status", eacces, "no-grant", ""},
	{"openw /proc/self/autogroup", eacces, "rights", "/proc/%SELF/autogroup"},

	// ---- 2. links and renames: both ends count, and no right is ever gained
	{operation: "link %IN/file %IN/link2"},
	{operation: "rename %IN/link2 %IN/dir/link2"},
	{operation: "linktmp %IN/dir %IN/linked-tmp"},
	{operation: "exchange %IN/file %IN/victim"},
	{operation: "exchange %IN/file %IN/victim"},
	{"linkdeleted %IN/gone %IN/l", unix.ENOENT, "", ""}, // the kernel's own answer
	{"link %OUT/file %IN/l", eacces, "no-grant", "%OUT/file"},
	{"link %OTHER/file %IN/l", eacces, "no-grant", "%OTHER/file"},
	{"link %IN/file %OUT/l", eacces, "no-grant", "%OUT/l"},
	{"link %OUT/file %OUT/l", eacces, "no-grant", "%OUT/file"},
	{"link %RO/file %IN/l", unix.EXDEV, "rights-gain", "%IN/l"},
	{"link %IN/file %RO/l", eacces, "rights", "%RO/l"},
	{"link %NONE/file %IN/l", eacces, "rights", "%NONE/file"},
	{"link %IN/file %NONE/l", eacces, "rights", "%NONE/l"},
	{"link %MNT/file %IN/l", unix.EXDEV, "", ""}, // the kernel's own answer, as for every other mount
	{"linkfd %OUT/file %IN/l", eacces, "no-grant", "%OUT/file"},
	{"linkfd %RO/file %IN/l", unix.EXDEV, "rights-gain", "%IN/l"},
	{"root linkhandle %OUT/file %IN/l", eacces, "no-grant", "%OUT/file"},
	{"root linkhandle %RO/file %IN/l", unix.EXDEV, "rights-gain", "%IN/l"},
	{"linktmp %IN %OUT/l", eacces, "no-grant", "%OUT/l"},
	{"rename %IN/file %OUT/m", eacces, "no-grant", "%OUT/m"},
	{"rename %OUT/file %IN/m", eacces, "no-grant", "%OUT/file"},
	{"rename %IN/file %OUT/file", eacces, "no-grant", "%OUT/file"},
	{"rename %OUT/file %IN/file", eacces, "no-grant", "%OUT/file"},
	{"rename %IN/file %RO/m", eacces, "rights", "%RO/m"},
	{"rename %IN/file %RO/file", eacces, "rights", "%RO/file"},
	{"rename %RO/file %IN/m", eacces, "rights", "%RO/file"},
	{"rename %IN/dir %OUT/dir", eacces, "no-grant", "%OUT/dir"},
	{"rename %OUT/dir %IN/m", eacces, "no-grant", "%OUT/dir"},
	{"rename %NONE %IN/m", eacces, "rights", "%NONE"},
	{"rename %IN/file %NONE/m", eacces, "rights", "%NONE/m"},
	{"rename %IN/file %MNT/m", unix.EXDEV, "", ""},
	{"rename %IN %OUT/m", eacces, "no-grant", "%IN"},
	{"whiteout %IN/file %OUT/m", eacces, "no-grant", "%OUT/m"},
	{"whiteout %OUT/file %IN/m", eacces, "no-grant", "%OUT/file"},
	{"exchange %IN/file %OUT/file", eacces, "no-grant", "%OUT/file"},
	{"exchange %OUT/file %IN/file", eacces, "no-grant", "%OUT/file"},
	{"exchange %IN/dir %OUT/dir", eacces, "no-grant", "%OUT/dir"},
	{"exchange %IN/file %RO/file", eacces, "rights", "%RO/file"},
	{"exchange %RO/file %IN/file", eacces, "rights", "%RO/file"},
	{"exchange %IN/file %NONE/file", eacces, "rights", "%NONE/file"},
	{"exchange %NONE/file %IN/file", eacces, "rights", "%NONE/file"},

	// ---- 3. making, removing and changing
	{operation: "mknod %IN/new"},
	{operation: "mkfifo %IN/fifo"},
	{operation: "bindsocket %IN/bound"},
	{"mknod %OUT/new", eacces, "no-grant", ""},
	{"mknod %RO/new", eacces, "rights", ""},
	{"mknod %NONE/new", eacces, "rights", ""},
	{"mknod %MNT/new", eacces, "mount-boundary", ""},
	{"mkfifo %OUT/fifo", eacces, "no-grant", ""},
	{"mksock %OUT/socket", eacces, "no-grant", ""},
	{"bindsocket %OUT/bound", eacces, "no-grant", ""},
	{"mkdir %OUT/d", eacces, "no-grant", ""},
	{"mkdir %RO/d", eacces, "rights", ""},
	{"mkdir %MNT/d", eacces, "mount-boundary", ""},
	{"symlink %OUT/s", eacces, "no-grant", ""},
	{"symlink %RO/s", eacces, "rights", ""},
	{"symlink %MNT/s", eacces, "mount-boundary", ""},
	{"unlink %OUT/file", eacces, "no-grant", ""},
	{"unlink %RO/file", eacces, "rights", ""},
	{"unlink %MNT/file", eacces, "mount-boundary", ""},
	{"rmdir %OUT/dir", eacces, "no-grant", ""},
	{"rmdir %RO/dir", eacces, "rights", ""},
	{"rmdir %MNT/dir", eacces, "mount-boundary", ""},
	{"rmdir %IN", eacces, "no-grant", "%IN"},
	{operation: "truncate %IN/victim"},
	{"truncate %OUT/file", eacces, "no-grant", ""},
	{"truncate %RO/file", eacces, "rights", ""},
	{"truncate %MNT/file", eacces, "mount-boundary", ""},
	{operation: "chmod %IN/file"},
	{"chmod %OUT/file", eacces, "no-grant", ""},
	{"chmod %OUT", eacces, "no-grant", ""},
	{"chmod %RO/file", eacces, "rights", ""},
	{"chmod %MNT/file", eacces, "mount-boundary", ""},
	{"chmodfd %OUT/file", eacces, "no-grant", ""},
	{"legacychmod", eacces, "no-grant", "%OUT/file"},
	{operation: "chown %IN/file"},
	{"chown %OUT/file", eacces, "no-grant", ""},
	{"chown %RO/file", eacces, "rights", ""},
	{"lchown %OUT/file", eacces, "no-grant", ""},
	{"legacychown", eacces, "no-grant", "%OUT/file"},
	{operation: "utimes %IN/file"},
	{operation: "touch %IN/file"},
	{"utimes %OUT/file", eacces, "no-grant", "(fs)"},
	{"utimes %RO/file", eacces, "rights", "(fs)"},
	{"touch %OUT/file", eacces, "no-grant", "(fs)"},
	{"touch %RO/file", eacces, "rights", "(fs)"},
	{"utimesfd %OUT/file", eacces, "no-grant", "(fs)"},
	{"legacyutimes", eacces, "no-grant", "(fs)%OUT/file"},
	{operation: "setxattr %IN/file"},
	{operation: "removexattr %IN/file"},
	{operation: "setacl %IN/file"},
	{"setxattr %OUT/file", eacces, "no-grant", "(fs)"},
	{"setxattr %RO/file", eacces, "rights", "(fs)"},
	{"removexattr %OUT/file", eacces, "no-grant", "(fs)"},
	{"legacyxattr", eacces, "no-grant", "(fs)%OUT/file"},
	{"root settrusted %OUT/file", eperm, "forbidden-operation", "-"}, // it takes CAP_SYS_ADMIN
	{"root setcap %OUT/file", eacces, "no-grant", "(fs)"},
	{"setacl %OUT/file", eacces, "no-grant", "(fs)"},
	{"setacl %RO/file", eacces, "rights", "(fs)"},
	{"removeacl %OUT/file", eacces, "no-grant", "(fs)"},
	{"filesetattr %OUT/file", eacces, "no-grant", "(fs)"},
	{"setimmutable %RO/file", eperm, "rights", ""},
	// Looking is not denied: metadata, link targets, and handles that give no access.
	{operation: "stat %OUT/file"},
	{operation: "access %OUT/file"},
	{operation: "readlink %IN/to-out"},
	{operation: "getxattr %OUT/file"},
	{operation: "path %OUT/file"},
	{operation: "chdir %OUT"},

	// ---- 4. mounts
	{"mount %IN/dir", eperm, "forbidden-operation", "-"},
	{"bind %OUT %IN/dir", eperm, "forbidden-operation", "-"},
	{"bind %IN %IN/dir", eperm, "forbidden-operation", "-"},
	{"remountro %IN", eperm, "forbidden-operation", "-"},
	{"private /", eperm, "forbidden-operation", "-"},
	{"root umount %MNT", eperm, "forbidden-operation", "-"},
	{"root pivot %IN", eperm, "forbidden-operation", "-"},
	{"root chroot %IN", eperm, "forbidden-operation", "-"},
	{"root clonetree %IN", eperm, "forbidden-operation", "-"},
	{"root movetree %MNT %IN/dir", eperm, "forbidden-operation", "-"},
	{"root mountattr %MNT", eperm, "forbidden-operation", "-"},
	{"root parameter", eperm, "forbidden-operation", "-"},
	{"root unshare", eperm, "forbidden-operation", "-"},
	{"setns %HOST", eperm, "other-jail", "-"},
	{"userns mount %IN/dir", eperm, "forbidden-operation", "-"},
	{"userns bind %OUT %IN/dir", eperm, "forbidden-operation", "-"},
	{"userns remount %IN/ns", eperm, "forbidden-operation", "-"},
	{"userns umount %IN/ns", eperm, "forbidden-operation", "-"},
	{"userns pivot %IN/ns", eperm, "forbidden-operation", "-"},
	{"userns chroot %IN", eperm, "forbidden-operation", "-"},
	{"userns movemount %IN/dir", eperm, "forbidden-operation", "-"},
	{"userns movetree %IN/ns %IN/dir", eperm, "forbidden-operation", "-"},
	{"userns kernmount", eperm, "forbidden-operation", "-"},
	{"userns parameter", eperm, "forbidden-operation", "-"},
	{operation: "userns clonetree %OUT"}, // a mount of its own that leads to what it led to before
	{"userns opentree %OUT file", eacces, "no-grant", "*"},
	{"userns opentree %IN/dir link2", eacces, "no-grant", "*"}, // the root of that mount lies below the workspace's
	{operation: "userns opentree %IN file"},
	{operation: "userns mountattr %IN/ns"}, // its own mount

	// ---- 5. descriptors from outside
	{operation: "receive read %IN/file"},
	{operation: "receive write %IN/file"},
	{operation: "receive pipe"},
	{operation: "receive memory"},
	{operation: "receive pidfd"},
	{operation: "receive eventfd"},
	{"receive read %OUT/file", eacces, "no-grant", ""},
	{"receive write %OUT/file", eacces, "no-grant", ""},
	{"receive read %OUT", eacces, "no-grant", ""},
	{"receive path %OUT", eacces, "no-grant", ""},
	{"receive path /", eacces, "no-grant", ""},
	{"receive read %OTHER/file", eacces, "no-grant", ""},
	{"receive write %RO/file", eacces, "rights", ""},
	{"receive read %NONE/file", eacces, "rights", ""},
	{"receive read %MNT/file", eacces, "mount-boundary", ""},
	{"receive deleted %OUT/deleted", eacces, "no-grant", ""},
	{"receive read /dev/kmsg", eacces, "no-grant", ""},
	{"receive path /sys/fs/cgroup", eacces, "no-grant", ""},
	{"receive bpfmap", eacces, "forbidden-operation", "*"},
	{"receive userfault", eacces, "forbidden-operation", "*"},
	{"receive inotify", eacces, "forbidden-operation", "*"},
	{operation: "pidfdget %PEER 0"},
	{"pidfdget %PEER 3", eacces, "no-grant", "%OUT/file"},
	{"pidfdget %HOST 0", eperm, "other-jail", "-"},

	// ---- 6. io_uring, in each of the ways that it has to do something, and a ring that was made outside
	{operation: "uring plain openat %IN/file"},
	{operation: "uring plain openat-create %IN/uring-plain"},
	{"uring plain openat %OUT/file", eacces, "no-grant", ""},
	{"uring plain openat-write %OUT/file", eacces, "no-grant", ""},
	{"uring plain openat-write %RO/file", eacces, "rights", ""},
	{"uring plain openat-create %OUT/new", eacces, "no-grant", ""},
	{"uring plain openat %IN/to-out", eacces, "no-grant", "%OUT/file"},
	{"uring plain openat %DENIED/file", eacces, "denied-name", ""},
	{"uring plain openat2 %OUT/file", eacces, "no-grant", ""},
	{"uring plain unlinkat %OUT/file", eacces, "no-grant", ""},
	{"uring plain rmdirat %OUT/dir", eacces, "no-grant", ""},
	{"uring plain mkdirat %OUT/d", eacces, "no-grant", ""},
	{"uring plain symlinkat target %OUT/s", eacces, "no-grant", ""},
	{"uring plain renameat %IN/file %OUT/m", eacces, "no-grant", "%OUT/m"},
	{"uring plain renameat %OUT/file %IN/m", eacces, "no-grant", "%OUT/file"},
	{"uring plain linkat %OUT/file %IN/l", eacces, "no-grant", "%OUT/file"},
	{"uring plain linkat %RO/file %IN/l", unix.EXDEV, "rights-gain", "%IN/l"},
	{operation: "uring plain renameat %IN/uring-plain %IN/uring-moved"},
	{operation: "uring plain linkat %IN/uring-moved %IN/uring-link"},
	{operation: "uring plain unlinkat %IN/uring-moved"},
	{operation: "uring plain unlinkat %IN/uring-link"},
	{"uring plain setxattr %OUT/file", eacces, "no-grant", "(fs)%OUT/file"},
	{operation: "uring worker openat %IN/file"},
	{operation: "uring worker openat-create %IN/uring-worker"},
	{"uring worker openat %OUT/file", eacces, "no-grant", ""},
	{"uring worker openat-write %OUT/file", eacces, "no-grant", ""},
	{"uring worker openat-write %RO/file", eacces, "rights", ""},
	{"uring worker openat-create %OUT/new", eacces, "no-grant", ""},
	{"uring worker openat %IN/to-out", eacces, "no-grant", "%OUT/file"},
	{"uring worker openat %DENIED/file", eacces, "denied-name", ""},
	{"uring worker openat2 %OUT/file", eacces, "no-grant", ""},
	{"uring worker unlinkat %OUT/file", eacces, "no-grant", ""},
	{"uring worker rmdirat %OUT/dir", eacces, "no-grant", ""},
	{"uring worker mkdirat %OUT/d", eacces, "no-grant", ""},
	{"uring worker symlinkat target %OUT/s", eacces, "no-grant", ""},
	{"uring worker renameat %IN/file %OUT/m", eacces, "no-grant", "%OUT/m"},
	{"uring worker renameat %OUT/file %IN/m", eacces, "no-grant", "%OUT/file"},
	{"uring worker linkat %OUT/file %IN/l", eacces, "no-grant", "%OUT/file"},
	{"uring worker linkat %RO/file %IN/l", unix.EXDEV, "rights-gain", "%IN/l"},
	{operation: "uring worker renameat %IN/uring-worker %IN/uring-moved"},
	{operation: "uring worker linkat %IN/uring-moved %IN/uring-link"},
	{operation: "uring worker unlinkat %IN/uring-moved"},
	{operation: "uring worker unlinkat %IN/uring-link"},
	{"uring worker setxattr %OUT/file", eacces, "no-grant", "(fs)%OUT/file"},
	{operation: "uring polled openat %IN/file"},
	{operation: "uring polled openat-create %IN/uring-polled"},
	{"uring polled openat %OUT/file", eacces, "no-grant", ""},
	{"uring polled openat-write %OUT/file", eacces, "no-grant", ""},
	{"uring polled openat-write %RO/file", eacces, "rights", ""},
	{"uring polled openat-create %OUT/new", eacces, "no-grant", ""},
	{"uring polled openat %IN/to-out", eacces, "no-grant", "%OUT/file"},
	{"uring polled openat %DENIED/file", eacces, "denied-name", ""},
	{"uring polled openat2 %OUT/file", eacces, "no-grant", ""},
	{"uring polled unlinkat %OUT/file", eacces, "no-grant", ""},
	{"uring polled rmdirat %OUT/dir", eacces, "no-grant", ""},
	{"uring polled mkdirat %OUT/d", eacces, "no-grant", ""},
	{"uring polled symlinkat target %OUT/s", eacces, "no-grant", ""},
	{"uring polled renameat %IN/file %OUT/m", eacces, "no-grant", "%OUT/m"},
	{"uring polled renameat %OUT/file %IN/m", eacces, "no-grant", "%OUT/file"},
	{"uring polled linkat %OUT/file %IN/l", eacces, "no-grant", "%OUT/file"},
	{"uring polled linkat %RO/file %IN/l", unix.EXDEV, "rights-gain", "%IN/l"},
	{operation: "uring polled renameat %IN/uring-polled %IN/uring-moved"},
	{operation: "uring polled linkat %IN/uring-moved %IN/uring-link"},
	{operation: "uring polled unlinkat %IN/uring-moved"},
	{operation: "uring polled unlinkat %IN/uring-link"},
	{"uring polled setxattr %OUT/file", eacces, "no-grant", "(fs)%OUT/file"},
	{operation: "uring changed setxattr %IN/file"},
	{"uring changed setxattr %OUT/file", eacces, "no-grant", "(fs)%OUT/file"},
	{"uring changed openat %OUT/file", eacces, "no-grant", ""},
	{"pidfdget %PEER 4", eacces, "forbidden-operation", "*"}, // a ring that was made outside
	{"personality", eperm, "forbidden-operation", "-"},

	// ---- 7. leaving the cgroup
	{"root join /sys/fs/cgroup", eacces, "no-grant", "/sys/fs/cgroup/cgroup.procs"},
	{"join %CGROUP", eacces, "no-grant", "%CGROUP/cgroup.procs"},
	{"join %CGROUP/child", eacces, "no-grant", "%CGROUP/child/cgroup.procs"},
	{"root join %CGROUP/..", eacces, "no-grant", "%PARENT/cgroup.procs"},
	{"join %SIBLING", eacces, "no-grant", "%SIBLING/cgroup.procs"},
	{"root joinfd cgroup.procs", eacces, "no-grant", "/sys/fs/cgroup/cgroup.procs"},
	{"mkdir %CGROUP/own", eacces, "no-grant", ""},
	{"rmdir %CGROUP/child", eacces, "no-grant", ""},
	{"cgroup /sys/fs/cgroup", eperm, "forbidden-operation", "-"},
	{"cgroup %CGROUP", eperm, "forbidden-operation", "-"},
	{"cgroup %SIBLING", eperm, "forbidden-operation", "-"},

	// ---- 8. other processes
	{operation: "trace %PEER"},
	{"trace %HOST", eacces, "other-jail", "-"},
	{"trace %FOREIGN", eacces, "other-jail", "-"},
	{operation: "attach %PEER"},
	{"attach %HOST", eperm, "other-jail", "-"},
	{"attach %FOREIGN", eperm, "other-jail", "-"},
	{"traceme", eperm, "other-jail", "-"}, // its parent is outside
	{operation: "vmread %PEER"},
	{operation: "vmwrite %PEER"},
	{"vmread %HOST", eperm, "other-jail", "-"},
	{"vmwrite %HOST", eperm, "other-jail", "-"},
	{"kcmp %HOST", eperm, "other-jail", "-"},
	{operation: "root advise %PEER"},
	{"advise %HOST", eacces, "other-jail", "-"},
	{"movepages %HOST", eperm, "other-jail", "-"},
	{operation: "kill %PEER"},
	{"kill %HOST", eperm, "other-jail", "-"},
	{"signal %HOST 9", eperm, "other-jail", "-"},
	{"signal %HOST 15", eperm, "other-jail", "-"},
	{"signal -%HOST 9", eperm, "other-jail", "-"},
	{"signal %FOREIGN 9", eperm, "other-jail", "-"},
	{"tgkill %HOST 9", eperm, "other-jail", "-"},
	{"sigqueue %HOST 9", eperm, "other-jail", "-"},
	{"pidfdsignal %HOST 9", eperm, "other-jail", "-"},
	{operation: "setown %IN/file 0"},
	{"setown %IN/file %HOST", eperm, "forbidden-operation", "%IN/file"},
	{"setownex %IN/file %HOST", eperm, "forbidden-operation", "%IN/file"},
	{"sigio 4", 0, "other-jail", "-"}, // who writes to the pipe is not told that its reader's owner gets no signal
	{operation: "sigio 5"},
	{operation: "setpgid 0"},
	{"setpgid %HOST", eperm, "other-jail", "-"},
	{operation: "setrlimit %PEER"},
	{"setrlimit %HOST", eperm, "other-jail", "-"},
	{"limitfiles %HOST", eperm, "other-jail", "-"},
	{operation: "renice %PEER"},
	{"setnice %HOST", eperm, "other-jail", "-"},
	{"renice %HOST", eperm, "other-jail", "-"},
	{"renice %FOREIGN", eperm, "other-jail", "-"},
	{operation: "affinity %PEER"},
	{"setscheduler %HOST", eperm, "other-jail", "-"},
	{"schedattr %HOST", eperm, "other-jail", "-"},
	{"affinity %HOST", eperm, "other-jail", "-"},
	{operation: "setioprio %PEER"},
	{"setioprio %HOST", eperm, "other-jail", "-"},

	// ---- 9. unix sockets
	{operation: "connect %IN/stream"},
	{operation: "dial packet %IN/packet"},
	{operation: "dial datagram %IN/datagram"},
	{operation: "send %IN/datagram"},
	{"connect %OUT/stream", eacces, "no-grant", ""},
	{"dial packet %OUT/packet", eacces, "no-grant", ""},
	{"dial datagram %OUT/datagram", eacces, "no-grant", ""},
	{"send %OUT/datagram", eacces, "no-grant", ""},
	{"connect %RO/stream", eacces, "rights", ""},
	{"send %RO/datagram", eacces, "rights", ""},
	{"connect %NONE/stream", eacces, "rights", ""},
	{"connect %OTHER/stream", eacces, "no-grant", ""},
	{"connect %MNT/stream", eacces, "no-grant", "%OUT/stream"}, // a socket remembers by which path it was bound
	{operation: "dial stream @peer-stream-%TAG"},
	{operation: "dial packet @peer-packet-%TAG"},
	{operation: "dial datagram @peer-datagram-%TAG"},
	{operation: "sendto @peer-datagram-%TAG"},
	{"dial stream @host-stream-%TAG", eacces, "other-jail", "-"},
	{"dial packet @host-packet-%TAG", eacces, "other-jail", "-"},
	{"dial datagram @host-datagram-%TAG", eacces, "other-jail", "-"},
	{"sendto @host-datagram-%TAG", eacces, "other-jail", "-"},
	{"dial stream @foreign-stream-%TAG", eacces, "other-jail", "-"},

	// ---- 10. the enforcer and the kernel
	{"bpf", eperm, "forbidden-operation", "-"},
	{"bpfget /sys/fs/bpf/thenforce/v1/tf_jails", eperm, "forbidden-operation", "-"},
	{"root bpfmap", eperm, "forbidden-operation", "-"},
	{"root open /sys/fs/bpf/thenforce/v1", eacces, "no-grant", ""},
	{"root unlink /sys/fs/bpf/thenforce/v1/tf_jails", eacces, "no-grant", ""},
	{"root rename /sys/fs/bpf/thenforce/v1 /sys/fs/bpf/thenforce/v0", eacces, "no-grant", "/sys/fs/bpf/thenforce/v1"},
	{"root mkdir /sys/fs/bpf/thenforce/v2", eacces, "no-grant", ""},
	{"root loadmodule", eperm, "forbidden-operation", "-"},
	{"root initmodule", eperm, "forbidden-operation", "-"},
	{"root deletemodule", eperm, "forbidden-operation", "-"},
	{"family", unix.EAFNOSUPPORT, "forbidden-operation", "-"}, // a socket of a family that a module would have to bring
	{"root kexec", eperm, "forbidden-operation", "-"},
	{"root kexecfile", eperm, "forbidden-operation", "-"},
	{"root reboot", eperm, "forbidden-operation", "-"},
	{"root swapon %IN/file", eperm, "forbidden-operation", "-"},
	{"root swapoff %IN/file", eperm, "forbidden-operation", "-"},
	{"root acct %IN/file", eperm, "forbidden-operation", "-"},
	{"root settime", eperm, "forbidden-operation", "-"},
	{"root slewtime", eperm, "forbidden-operation", "-"},
	{"root iopl", eperm, "forbidden-operation", "-"},
	{"root ioperm", eperm, "forbidden-operation", "-"},
	{"root open /proc/kmsg", eacces, "no-grant", ""},
	{"root vhangup", eperm, "forbidden-operation", "-"},
	{"root hostname", eperm, "forbidden-operation", "-"},
	{"root domain", eperm, "forbidden-operation", "-"},
	{"perf", eperm, "forbidden-operation", "-"},
	{"root openw /proc/sys/kernel/core_pattern", eacces, "no-grant", ""},
	{"root openw /proc/sys/kernel/modprobe", eacces, "no-grant", ""},
	{"root openw /proc/sys/vm/drop_caches", eacces, "no-grant", ""},
	{"root openw /proc/sysrq-trigger", eacces, "no-grant", ""},
	{"root openw /sys/power/state", eacces, "no-grant", ""},

	// ---- 11. long, deep and odd names
	{operation: "open %IN:65"},
	{operation: "open %IN:201"},
	{operation: "open %IN:256"},
	{operation: "open %IN:4095"},
	{"open %OUT:65", eacces, "no-grant", ""},
	{"open %OUT:201", eacces, "no-grant", ""},
	{"open %OUT:256", eacces, "no-grant", ""},
	{"open %OUT:4095", eacces, "no-grant", ""},
	{operation: "open %DEEP20/file"},
	{operation: "open %DEEP21/file"},
	{operation: "open %DEEP32/file"},
	{operation: "open %DEEP33/file"},
	{operation: "open %DEEP64/file"},
	{operation: "open %DEEP300/file"},
	{"open %OUTDEEP20/file", eacces, "no-grant", ""},
	{"open %OUTDEEP21/file", eacces, "no-grant", ""},
	{"open %OUTDEEP32/file", eacces, "no-grant", ""},
	{"open %OUTDEEP33/file", eacces, "no-grant", ""},
	{"open %OUTDEEP64/file", eacces, "no-grant", ""},
	{"open %OUTDEEP300/file", eacces, "no-grant", ""},
	{operation: `quoted open %IN/sp\x20ace`},
	{operation: `quoted open %IN/new\nline`},
	{operation: `quoted open %IN/tab\tbing`},
	{operation: `quoted open %IN/back\\slash\\040`},
	{operation: `quoted open %IN/not\xffutf\xfe8`},
	{operation: `quoted open %IN/-`},
	{`quoted open %OUT/sp\x20ace`, eacces, "no-grant", ""},
	{`quoted open %OUT/new\nline`, eacces, "no-grant", ""},
	{`quoted open %OUT/tab\tbing`, eacces, "no-grant", ""},
	{`quoted open %OUT/back\\slash\\040`, eacces, "no-grant", ""},
	{`quoted open %OUT/not\xffutf\xfe8`, eacces, "no-grant", ""},
	{`quoted open %OUT/-`, eacces, "no-grant", ""},
	{`quoted unlink %OUT/new\nline`, eacces, "no-grant", ""},
	{`quoted rename %OUT/not\xffutf\xfe8 %IN/m`, eacces, "no-grant", `%OUT/not\xffutf\xfe8`},

	// ---- 12. devices, terminals, watches, and what acts on more than the file
	{operation: "open /dev/null"},
	{operation: "openw /dev/null"},
	{"open /dev/kmsg", eacces, "no-grant", ""},
	{"open /dev/zero", eacces, "no-grant", ""},
	{"mkchar %IN/char", eacces, "device-node", ""},
	{"mkblock %IN/block", eacces, "device-node", ""},
	{"mkchar %OUT/char", eacces, "device-node", ""},
	{"open %IN/found-char", eacces, "device-node", ""},
	{"openw %IN/found-char", eacces, "device-node", ""},
	{"open %IN/found-block", eacces, "device-node", ""},
	{"chmod %IN/found-block", eacces, "device-node", ""},
	{operation: "pty"},
	{"type", eperm, "ioctl", "/dev/ptmx"},
	{"compattype", eperm, "ioctl", "/dev/ptmx"},
	{"ttyioctl 0x541c", eperm, "ioctl", "/dev/ptmx"}, // TIOCLINUX
	{"ttyioctl 0x541d", eperm, "ioctl", "/dev/ptmx"}, // TIOCCONS
	{"ttyioctl 0x8901", eperm, "ioctl", "/dev/ptmx"}, // FIOSETOWN
	{"open %TTY", eacces, "no-grant", ""},
	{"openw %TTY", eacces, "no-grant", ""},
	{"chmod %TTY", eacces, "no-grant", ""},
	{operation: "watch %IN/file"},
	{operation: "watch %RO"},
	{"watch %OUT/file", eacces, "no-grant", ""},
	{"watch %OUT", eacces, "no-grant", ""},
	{"watch %NONE", eacces, "rights", ""},
	{"watch %MNT", eacces, "mount-boundary", ""},
	{operation: "dnotify %RO"},
	{operation: "user fanmark inode %IN/file"},
	{"user fanmark inode %OUT/file", eacces, "no-grant", ""},
	{"root fanmark mount %IN", eperm, "forbidden-operation", "-"}, // of those who are not root the kernel takes none
	{"root fanmark filesystem %IN", eperm, "forbidden-operation", "-"},
	{operation: "lease %IN/file"},
	{"lease %RO/file", eperm, "rights", ""},
	{operation: "ioctl %IN/file 0x541b"},                       // FIONREAD
	{operation: "ioctl %IN/file 0x540f"},                       // TIOCGPGRP: the kernel's own ENOTTY
	{operation: "ioctl %IN/file 0x80086601"},                   // FS_IOC_GETFLAGS
	{"ioctl %IN/file 0x80045a7f", eperm, "ioctl", "%IN/file"},  // one that nobody knows
	{"ioctl %IN 0xc0045877", eperm, "ioctl", "%IN"},            // FIFREEZE
	{"ioctl %IN 0xc0045878", eperm, "ioctl", "%IN"},            // FITHAW
	{"ioctl %IN 0xc0185879", eperm, "ioctl", "%IN"},            // FITRIM
	{"ioctl %IN 0x8004587d", eperm, "ioctl", "%IN"},            // FS_IOC_SHUTDOWN
	{"ioctl %IN 0x5000940e", eperm, "ioctl", "%IN"},            // BTRFS_IOC_SUBVOL_CREATE
	{"ioctl %IN 0x50009401", eperm, "ioctl", "%IN"},            // BTRFS_IOC_SNAP_CREATE
	{"ioctl %IN 0x50009417", eperm, "ioctl", "%IN"},            // BTRFS_IOC_SNAP_CREATE_V2
	{"ioctl %IN 0x5000943f", eperm, "ioctl", "%IN"},            // BTRFS_IOC_SNAP_DESTROY_V2, by number
	{"ioctl %IN 0xc0389412", eperm, "ioctl", "%IN"},            // BTRFS_IOC_INO_LOOKUP
	{"ioctl %IN 0xc038586b", eperm, "ioctl", "%IN"},            // XFS_IOC_OPEN_BY_HANDLE
	{"ioctl %IN 0x40086610", eperm, "ioctl", "%IN"},            // EXT4_IOC_RESIZE_FS
	{"ioctl %RO/file 0x40086602", eperm, "rights", "%RO/file"}, // FS_IOC_SETFLAGS
	{"compat %IN/file 0xc0045877", eperm, "ioctl", "%IN/file"}, // FIFREEZE of a 32-bit program
	{operation: "dump %IN/dir"},
	{"dump %OUT", eacces, "no-grant", "%OUT/core"},

	// ---- 13. denied names: %DENIED is there, with a further hard link %IN/link; %IN/git/hooks is not yet, nor is %IN/git
	{"open %DENIED/file", eacces, "denied-name", ""},
	{"openw %DENIED/file", eacces, "denied-name", ""},
	{"exec %DENIED/program", eacces, "denied-name", ""},
	{"open %IN/link", eacces, "denied-name", ""},
	{"open %RO/../in/denied/file", eacces, "denied-name", "%DENIED/file"},
	{"reopen %DENIED/file", eacces, "denied-name", ""},
	{"mknod %DENIED/new", eacces, "denied-name", ""},
	{"unlink %DENIED/file", eacces, "denied-name", ""},
	{"rmdir %DENIED", eacces, "denied-name", ""},
	{"rename %DENIED %IN/m", eacces, "denied-name", "%DENIED"},
	{"rename %IN/dir %DENIED", eacces, "denied-name", "%DENIED"},
	{"exchange %DENIED %IN/dir", eacces, "denied-name", "%DENIED"},
	{"exchange %IN/dir %DENIED", eacces, "denied-name", "%DENIED"},
	{"link %DENIED/file %IN/l", eacces, "denied-name", "%DENIED/file"},
	{"linkfd %DENIED/file %IN/l", eacces, "denied-name", "%DENIED/file"},
	{"chmod %DENIED/file", eacces, "denied-name", ""},
	{"truncate %DENIED/file", eacces, "denied-name", ""},
	{"utimes %DENIED/file", eacces, "denied-name", "(fs)"},
	{"watch %DENIED", eacces, "denied-name", ""},
	{"connect %DENIED/stream", eacces, "denied-name", ""},
	{"receive read %DENIED/file", eacces, "denied-name", ""},
	{"mknod %IN/.env", eacces, "denied-name", ""},
	{"create %IN/.env", eacces, "denied-name", ""},
	{"mkdir %IN/.env", eacces, "denied-name", ""},
	{"symlink %IN/.env", eacces, "denied-name", ""},
	{"bindsocket %IN/.env", eacces, "denied-name", ""},
	{"link %IN/file %IN/.env", eacces, "denied-name", "%IN/.env"},
	{"linktmp %IN %IN/.env", eacces, "denied-name", "%IN/.env"},
	{"rename %IN/file %IN/.env", eacces, "denied-name", "%IN/.env"},
	{"create %RO/../in/.env", eacces, "denied-name", "%IN/.env"},
	{operation: "mknod %IN/.env2"},
	{operation: "mknod %IN/.en"},
	{"mknod %IN/.eight-up", eacces, "denied-name", ""},
	{operation: "mknod %IN/.eight-u"},
	{operation: "mknod %IN/.eight-uq"},
	{"mknod %LONG", eacces, "denied-name", ""},
	{operation: "mknod %SHORT"},
	{"symlink %IN/git", eacces, "denied-name", ""},
	{"mknod %IN/git", eacces, "denied-name", ""},
	{"link %IN/file %IN/git", eacces, "denied-name", "%IN/git"},
	{"rename %IN/dir %IN/git", eacces, "denied-name", "%IN/git"},
	{operation: "mkdir %IN/git"},
	{"mkdir %IN/git/hooks", eacces, "denied-name", ""},
	{"rename %IN/dir %IN/git/hooks", eacces, "denied-name", "%IN/git/hooks"},
	{"rename %IN/git %IN/g", eacces, "denied-name", "%IN/git"},
	{"exchange %IN/git %IN/dir", eacces, "denied-name", "%IN/git"},
	{"exchange %IN/dir %IN/git", eacces, "denied-name", "%IN/git"},
	{"rmdir %IN/git", eacces, "denied-name", ""},
	{operation: "mknod %IN/git/config"},
	{operation: "utimes %IN/git"},
}

// mayLack are the operations that some kernel or file system of the matrix has not, by the errno it says so with: the
// rows are left out there, and there is nothing to deny.
var mayLack = map[string]map[unix.Errno]string{
	"personality": {unix.ENOSYS: "a kernel without io_uring"},
	"uring":       {unix.EOPNOTSUPP: "extended attributes on tmpfs before Linux 6.6"},
	"filesetattr": {unix.ENOSYS: "before Linux 6.17"},
	"handle":      {unix.EOPNOTSUPP: "overlayfs without nfs_export"},
	"tmpfile":     {unix.EOPNOTSUPP: "overlayfs on Linux 6.1"},
	"linktmp":     {unix.EOPNOTSUPP: "overlayfs on Linux 6.1"},
	"setxattr":    {unix.EOPNOTSUPP: "tmpfs before Linux 6.6"},
	"removexattr": {unix.EOPNOTSUPP: "tmpfs before Linux 6.6"},
	"getxattr":    {unix.EOPNOTSUPP: "tmpfs before Linux 6.6"},
	"legacyxattr": {unix.EOPNOTSUPP: "tmpfs before Linux 6.6"},
	"setacl":      {unix.EOPNOTSUPP: "a file system mounted without ACLs"},
	"ioctl":       {unix.ENOTTY: "a file system that does not know this one"},
}

// askOn are the operations for which some kernel, when a hook has denied, asks for a privilege instead: an event more.
var askOn = map[string]string{
	"advise": "Linux 6.13 asks root for CAP_PERFMON and CAP_SYS_ADMIN",
}

func TestPromise(t *testing.T) {
	e := openVerified(t)
	for _, place := range places {
		for _, user := range []uint32{0, 1000} {
			if !inFull() && !place.briefly[user] {
				continue
			}
			t.Run(place.name+"/"+userName(user), func(t *testing.T) {
				newStage(t, e, place.make(t), user).run(t, promise)
			})
		}
	}
}

func (p *stage) run(t *testing.T, rows []row) {
	events, err := OpenEvents(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	p.take(t, events)
	hooks := map[string]bool{}
	for _, row := range rows {
		if e := p.try(t, events, row); e != nil {
			hooks[e.Hook] = true
		}
	}
	p.checkOthers(t)
	if p.user != 0 {
		return
	}
	for i, a := range attachments {
		if a.hook >= 0 && p.e.expected(i) && !hooks[a.name] {
			t.Errorf("no row was denied by %s", a.name)
		}
	}
}

// try does one row and gives the event of one that was denied.
func (p *stage) try(t *testing.T, events *EventReader, r row) *Event {
	t.Helper()
	who, words := p.read(t, r.operation)
	if who == nil {
		return nil
	}
	if prepare, ok := preparations[words[0]]; ok {
		if err := prepare(p, words[1:]); err != nil {
			t.Fatalf("%s: prepare: %v", r.operation, err)
		}
		p.looks = ""
	}
	if r.code != "" && p.looks == "" {
		p.looks = snapshot(t, p.base)
	}
	errno, err := who.do(words)
	if err != nil {
		t.Fatalf("%s: %v", r.operation, err)
	}
	seen := p.take(t, events)
	if errno != r.errno && mayLack[words[0]][errno] != "" && len(seen) == 0 {
		return nil
	}
	if errno != r.errno {
		t.Errorf("%s: got %s, want %s; events %+v", r.operation, errnoName(errno), errnoName(r.errno), seen)
		return nil
	}
	if r.code == "" {
		p.looks = ""
		if len(seen) != 0 {
			t.Errorf("%s: allowed, and yet events %+v", r.operation, seen)
		}
		return nil
	}
	if askOn[words[0]] != "" {
		seen = slices.DeleteFunc(seen, func(e Event) bool { return e.Hook == "capable" })
	}
	if len(seen) != 1 || seen[0].Code != r.code || seen[0].Jail != p.jail.ID {
		t.Errorf("%s: want one event with %s: %+v", r.operation, r.code, seen)
		return nil
	}
	if want := hookErrno(seen[0].Hook, r.errno); seen[0].Errno != errnoName(want) {
		t.Errorf("%s: the event says %s, want %s", r.operation, seen[0].Errno, errnoName(want))
	}
	p.comparePath(t, r, words, seen[0])
	if after := snapshot(t, p.base); after != p.looks {
		t.Errorf("%s: denied, and yet something changed:\n%s", r.operation, lineDiff(p.looks, after))
		p.looks = after
	}
	return &seen[0]
}

// read turns a row's operation into words and who says them, nil if the stage's user has nobody for it.
func (p *stage) read(t *testing.T, operation string) (*canaryChild, []string) {
	t.Helper()
	words := strings.Fields(p.replace.Replace(operation))
	switch words[0] {
	case "root":
		if p.user != 0 {
			return nil, nil
		}
		return p.scene.child, words[1:]
	case "user":
		if p.user == 0 {
			return nil, nil
		}
		return p.scene.child, words[1:]
	case "userns":
		return p.scene.root, words[1:]
	}
	return p.scene.child, words
}

// hookErrno is what a hook said when the caller got errno: some callers have their own idea.
func hookErrno(hook string, errno unix.Errno) unix.Errno {
	switch hook {
	case "ptrace_access_check", "file_send_sigiotask", "kernel_module_request":
		return eperm
	}
	return errno
}

func (p *stage) comparePath(t *testing.T, r row, words []string, e Event) {
	t.Helper()
	if words[0] == "quoted" {
		var err error
		if words, err = unquote(words); err != nil {
			t.Fatal(err)
		}
	}
	want := p.replace.Replace(r.path)
	last := words[len(words)-1]
	ok := true
	switch {
	case r.path == "*":
	case r.path == "-": // none, or the process itself
		ok = e.Path == "" || strings.HasPrefix(e.Path, "/proc/")
	case r.path == "(tmp)": // a file without a name gets one of its number
		ok = strings.HasPrefix(e.Path, last+"/#")
	case strings.HasPrefix(r.path, "(fs)"):
		if want = strings.TrimPrefix(want, "(fs)"); want == "" {
			want = words[1]
		}
		want = filepath.Join(filepath.Base(filepath.Dir(want)), filepath.Base(want))
		ok = strings.HasPrefix(e.Path, "(") && strings.HasSuffix(e.Path, "/"+want)
	case r.path == "":
		want = last
		ok = e.Path == want
	default:
		if words[0] != last && strings.Contains(want, `\`) {
			plain, err := unquote([]string{want})
			if err != nil {
				t.Fatal(err)
			}
			want = plain[0]
		}
		ok = e.Path == want
	}
	if !ok {
		t.Errorf("%s: path %q, want %q", r.operation, e.Path, want)
	}
}

// take gives the events of the stage's jail that are in the ring.
func (p *stage) take(t *testing.T, events *EventReader) []Event {
	t.Helper()
	var seen []Event
	for {
		e, err := events.Read(time.Now())
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return seen
		}
		if err != nil {
			t.Fatal(err)
		}
		if e.Jail == p.jail.ID {
			seen = append(seen, e)
		}
	}
}

// snapshot tells a tree so that every change shows: the kernel sets the time of change for all of them.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		var st unix.Stat_t
		if err := errors.Join(err, unix.Lstat(path, &st)); err != nil {
			return err
		}
		if name := filepath.Base(path); name == "chain" || name == "mnt" || strings.HasPrefix(name, "lll") {
			return fs.SkipDir
		}
		fmt.Fprintf(&b, "%s %o %d:%d %d links %d at %d.%09d changed %d.%09d\n", path, st.Mode, st.Uid, st.Gid, st.Size, st.Nlink,
			st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// lineDiff is what only one of two texts has.
func lineDiff(before, after string) string {
	var b strings.Builder
	had, has := strings.Split(before, "\n"), strings.Split(after, "\n")
	for _, line := range had {
		if !slices.Contains(has, line) {
			b.WriteString("- " + line + "\n")
		}
	}
	for _, line := range has {
		if !slices.Contains(had, line) {
			b.WriteString("+ " + line + "\n")
		}
	}
	return b.String()
}
