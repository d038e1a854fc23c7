// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * thenforce's kernel programs.
 *
 * A task is judged when its own cgroup is a member of a jail. For an operation on an object the programs walk from
 * the object's dentry to the root of its mount; the nearest one that is a grant of the jail's policy decides. No
 * grant on the way: denied. Missing data inside a jail means deny, outside every jail it means allow.
 *
 * hook                   duty                                                       errno
 * open.h
 *  file_open             open, exec, open by handle, io_uring; O_TMPFILE            EACCES
 *  file_receive          descriptors from a socket, another process, into a ring    dropped; EACCES for pidfd_getfd
 *  mmap_file,            executable mappings                                        EACCES
 *   file_mprotect
 * names.h
 *  path_mknod            create a file (also open with O_CREAT), FIFO or socket;    EACCES
 *                        a block or character node never
 *  path_mkdir,           create a directory, a symbolic link                        EACCES
 *   path_symlink
 *  path_unlink,          remove a name                                              EACCES
 *   path_rmdir
 *  path_link             read the source, create the target; no right gained        EACCES, EXDEV (rights-gain)
 *  path_rename           delete the source and what it overwrites, create the       EACCES, EXDEV (rights-gain)
 *                        target; no right gained; an exchange is judged both ways
 *  path_truncate,        size by path, mode, owner                                  EACCES
 *   path_chmod, path_chown
 * objects.h
 *  inode_setattr         times                                                      EACCES
 *  inode_setxattr, inode_removexattr, inode_set_acl, inode_remove_acl (6.2),        EACCES
 *   inode_file_setattr (6.17)
 *  file_ioctl,           an allow-list on files and directories; never TIOCSTI,     EPERM
 *   file_ioctl_compat    TIOCLINUX, FIOSETOWN
 *  file_fcntl            F_SETOWN to others; leases without w                       EPERM
 *  path_notify           inotify and fanotify: read the object; one at a time       EACCES
 * links.h
 *  inode_follow_link     links of the own trees, in jails that follow none         EACCES
 * world.h
 *  sb_mount, sb_remount, sb_umount, sb_pivotroot, move_mount, path_chroot,          EPERM
 *   sb_kern_mount, fs_context_parse_param: no mounts, attached or not
 *  ptrace_access_check, ptrace_traceme, task_kill, file_send_sigiotask,             EPERM
 *   task_setrlimit, task_setnice, task_setscheduler, task_setioprio,
 *   task_setpgid: own jail only
 *  task_alloc            starting in another cgroup                                 EPERM
 *  unix_stream_connect,  right u on the path; an abstract name of the own jail      EACCES
 *   unix_may_send
 *  bpf, perf_event_open, kernel_module_request, capable, uring_override_creds       EPERM
 *
 * arming.h
 *  bprm_check_security   a container's task is judged from here on                  ENOMEM
 *  task_alloc            and what it starts                                         ENOMEM
 *
 * What was allowed is remembered by directory (cache.h): file_open, mmap_file, file_mprotect and the making of names ask
 * there first.
 *
 * sched_process_free (tracepoint) a task that is gone is forgotten
 * cgroup_mkdir    (tracepoint) a cgroup made inside a jail is a member before any task can enter it
 * cgroup_rmdir    (tracepoint) a removed cgroup is forgotten
 * d_delete, vfs_rename (functions) a granted object that is removed or overwritten is no longer granted
 * sb_delete       nor are those of a file system that is unmounted
 * devpts_pty_kill (function) a pseudo terminal that is gone is forgotten
 * tf_learn        (run by the loader) tells the identity of an open descriptor
 * tf_judge        (run by the loader) answers for a jail what its tasks may do with an open descriptor's object
 *
 * Not hooked, because another check comes first and always denies: task_movememory (ptrace_access_check),
 * kernel_load_data, kernel_read_file and locked_down (capable), bpf_map and bpf_prog (bpf), task_prlimit, which does not
 * tell whose limits it is about (task_setrlimit does).
 *
 * Two programs for one hook are for kernels whose hooks take other arguments. The path_ hooks need
 * CONFIG_SECURITY_PATH. The loader finds all that in the kernel's BTF.
 */
#include <linux/bpf.h>
#include <linux/errno.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#include "abi.h"
#include "kernel.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The enums that Go needs though no map holds them. */
const enum tf_limit *unused_limit __attribute__((unused));
const enum tf_right *unused_right __attribute__((unused));
const enum tf_mark *unused_mark __attribute__((unused));
const enum tf_code *unused_code __attribute__((unused));
const enum tf_hook *unused_hook __attribute__((unused));
const enum tf_op_id *unused_op __attribute__((unused));
const enum tf_jail_flag *unused_jail_flag __attribute__((unused));
const enum tf_event_flag *unused_event_flag __attribute__((unused));
const struct tf_event *unused_event __attribute__((unused));
const struct tf_learning *unused_learn __attribute__((unused));
const struct tf_judging *unused_judging __attribute__((unused));
const enum tf_judge_as *unused_judge_as __attribute__((unused));

#include "maps.h"
#include "subject.h"
#include "event.h"
#include "verdict.h"
#include "moves.h"
#include "walk.h"
#include "cache.h"
#include "arming.h"
#include "special.h"
#include "open.h"
#include "names.h"
#include "objects.h"
#include "links.h"
#include "world.h"
#include "cgroups.h"
#include "death.h"
#include "learn.h"
