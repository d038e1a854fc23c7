/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The ABI between the kernel programs and pkg/loader. bpf2go turns every enum and struct here into Go; a test
 * compares the Go side with the object's BTF. Numbers are append-only: pinned maps of an older build hold them.
 * TF_ABI names the pin folder and moves whenever a struct, a key or the meaning of a field changes.
 */
#ifndef TF_ABI_H
#define TF_ABI_H

#define TF_ABI 1

#define TF_NEVER 0x7fffffffffffffffULL

enum tf_limit {
	TF_MAX_JAILS = 4096,	  /* slots of tf_jails */
	TF_MAX_CGROUPS = 65536,	  /* members of all jails together; past it the slow subject test takes over */
	TF_MAX_GRANTS = 131072,	  /* grants of all policies together */
	TF_MAX_EXPANDED = 16384,  /* objects with expansions, of all policies together */
	TF_MAX_EXPANSIONS = 8,	  /* expansions of one object that hold at the same time */
	TF_MAX_SIBLINGS = 4096,	  /* processes that setpgid looks through for a group's leader */
	TF_MAX_PTYS = 65536,	  /* pseudo terminals that jails opened */
	TF_MEMBER_BITS = 65536,	  /* bits of the first subject filter */
	TF_GRANTED_CELLS = 131072, /* of the filter of granted inode numbers */
	TF_VERDICT_BITS = 10,	  /* binary logarithm of the verdicts that each CPU remembers */
	TF_VERDICT_AGE = 1024,	  /* ticks of the kernel's clock (1 to 10 s) that one is remembered for */
	TF_MAX_DEPTH = 4096,	  /* dentries one walk may pass; a deeper object is denied (depth) */
	TF_PASSES = 16,		  /* over one way; if somebody moves just this way during each it is a denial (no-data) */
	TF_LOOKS = 4,		  /* at the names of one way; if somebody moves it each time it is a denial (no-data) */
	TF_MAX_NESTING = 64,	  /* cgroup levels the slow subject test looks at */
	TF_MAX_INNER = 4,	  /* jails around one another */
	TF_MAX_ARMED = 131072,	  /* tasks of all containers together; past it they start no more */
	TF_EVENT_BYTES = 4194304, /* the event ring */
	TF_PATH_SHORT = 256,	  /* most paths; a longer one takes a record of TF_PATH_LONG */
	TF_PATH_LONG = 4096,
	TF_PATH_DEPTH = 1024,	  /* names and mounts that the path of an event may pass */
	TF_MAX_ATTACHED = 96,	  /* programs a proof has room for */
	TF_NAME_BYTES = 256,	  /* room for one name, with its zero byte */
	TF_MAX_NAMES = 65536,	  /* names on the way to denied ones, of all policies together */
	TF_DENY_DEPTH = 16,	  /* names from a grant down to a denied one */
};

/* Rights of a grant, and what one operation needs. The same bits as engine.Rights. */
enum tf_right {
	TF_READ = 1,
	TF_WRITE = 2,
	TF_CREATE = 4,
	TF_DELETE = 8,
	TF_EXEC = 16,
	TF_CONNECT = 32,
};
#define TF_ALL_RIGHTS 63

/* What else a grant's rights say. */
enum tf_mark {
	TF_DENIED = 128, /* the object has a denied name. It lies with no rights in a grant of its own */
	TF_EXPANDED = 256, /* tf_expansions has the object */
	TF_ADDS_ONLY = 512, /* the policy does not grant the object: there are only its expansions, and the walk goes on */
	TF_HOSTS_OWN = 1024, /* a preset\'s: its symbolic links are the host\'s, and may be followed in any jail */
	TF_NO_FILE = 2048, /* the object is no regular file, see tf_global.granted_files */
};

#define TF_GONE 1 /* in tf_grant.expires: the file system is unmounted, and its device number may be another's */

/* Why an operation was denied. TF_OK is no denial. */
enum tf_code {
	TF_OK = 0,
	TF_NO_GRANT = 1,
	TF_RIGHTS = 2,
	TF_RIGHTS_GAIN = 3,
	TF_DENIED_NAME = 4,
	TF_MOUNT_BOUNDARY = 5,
	TF_DISCONNECTED = 6,
	TF_GENERATION = 7,
	TF_EXPIRED = 8,
	TF_TOO_DEEP = 9,
	TF_DEVICE_NODE = 10,
	TF_OTHER_JAIL = 11,
	TF_FORBIDDEN_OPERATION = 12,
	TF_IOCTL = 13,
	TF_NO_DATA = 14,
};

/* One id for each LSM program. */
enum tf_hook {
	TF_HOOK_FILE_OPEN = 0,
	TF_HOOK_PATH_MKNOD = 1,
	TF_HOOK_PATH_MKDIR = 2,
	TF_HOOK_PATH_SYMLINK = 3,
	TF_HOOK_PATH_UNLINK = 4,
	TF_HOOK_PATH_RMDIR = 5,
	TF_HOOK_PATH_LINK = 6,
	TF_HOOK_PATH_RENAME = 7,
	TF_HOOK_PATH_TRUNCATE = 8,
	TF_HOOK_PATH_CHMOD = 9,
	TF_HOOK_PATH_CHOWN = 10,
	TF_HOOK_INODE_SETATTR = 11,
	TF_HOOK_INODE_SETXATTR = 12,
	TF_HOOK_INODE_REMOVEXATTR = 13,
	TF_HOOK_INODE_SET_ACL = 14,
	TF_HOOK_INODE_REMOVE_ACL = 15,
	TF_HOOK_INODE_FILE_SETATTR = 16,
	TF_HOOK_FILE_IOCTL = 17,
	TF_HOOK_FILE_IOCTL_COMPAT = 18,
	TF_HOOK_FILE_FCNTL = 19,
	TF_HOOK_FILE_RECEIVE = 20,
	TF_HOOK_MMAP_FILE = 21,
	TF_HOOK_FILE_MPROTECT = 22,
	TF_HOOK_PATH_NOTIFY = 23,
	TF_HOOK_SB_MOUNT = 24,
	TF_HOOK_SB_REMOUNT = 25,
	TF_HOOK_SB_UMOUNT = 26,
	TF_HOOK_SB_PIVOTROOT = 27,
	TF_HOOK_MOVE_MOUNT = 28,
	TF_HOOK_PATH_CHROOT = 29,
	TF_HOOK_PTRACE_ACCESS_CHECK = 30,
	TF_HOOK_PTRACE_TRACEME = 31,
	TF_HOOK_TASK_KILL = 32,
	TF_HOOK_FILE_SEND_SIGIOTASK = 33,
	TF_HOOK_TASK_SETRLIMIT = 34,
	TF_HOOK_TASK_SETNICE = 35,
	TF_HOOK_TASK_SETSCHEDULER = 36,
	TF_HOOK_TASK_SETIOPRIO = 37,
	TF_HOOK_TASK_ALLOC = 38,
	TF_HOOK_UNIX_STREAM_CONNECT = 39,
	TF_HOOK_UNIX_MAY_SEND = 40,
	TF_HOOK_BPF = 41,
	TF_HOOK_PERF_EVENT_OPEN = 42,
	TF_HOOK_KERNEL_MODULE_REQUEST = 43,
	TF_HOOK_CAPABLE = 44,
	TF_HOOK_URING_OVERRIDE_CREDS = 45,
	TF_HOOK_SB_KERN_MOUNT = 46,
	TF_HOOK_FS_CONTEXT_PARSE_PARAM = 47,
	TF_HOOK_TASK_SETPGID = 48,
	TF_HOOK_INODE_FOLLOW_LINK = 49,
	TF_HOOKS = 50,
};

/* What was tried, in the words of the engine's ops where it has one. */
enum tf_op_id {
	TF_OP_READ = 0,
	TF_OP_WRITE = 1,
	TF_OP_EXEC = 2,
	TF_OP_CREATE = 3,
	TF_OP_DELETE = 4,
	TF_OP_LINK = 5,
	TF_OP_RENAME = 6,
	TF_OP_ATTRIBUTES = 7,
	TF_OP_CONNECT = 8,
	TF_OP_IOCTL = 9,
	TF_OP_RECEIVE = 10,
	TF_OP_WATCH = 11,
	TF_OP_MOUNT = 12,
	TF_OP_TRACE = 13,
	TF_OP_SIGNAL = 14,
	TF_OP_PRIORITY = 15,
	TF_OP_CGROUP = 16,
	TF_OP_KERNEL = 17,
	TF_OP_FOLLOW = 18,
	TF_OPS = 19,
};

enum tf_jail_flag {
	TF_JAIL_LIVE = 1,    /* clear: the slot is free; a member that still points at it is denied (no-data) */
	TF_JAIL_MONITOR = 2, /* nothing is denied, all that would be is an event */
	TF_JAIL_CANARY = 4,  /* a verification is running: verdicts are counted in tf_canary */
	TF_JAIL_FOLLOW_MOUNTS = 8, /* what is mounted below a grant belongs to it */
	TF_JAIL_PENDING = 16, /* a container's: its tasks are judged from their own exec on, see arming.h */
	TF_JAIL_NO_SYMLINKS = 32, /* links of the jail's own trees are not followed, see inode_follow_link */
	TF_JAIL_PRIVILEGED = 64, /* only with TF_JAIL_CANARY: tf_capable lets its tasks pass, to see who is asked next */
	TF_JAIL_PARTIAL = 128, /* some of its cgroups may be no members: it is being made or ended. Programs do not care */
};

enum tf_event_flag {
	TF_EVENT_MONITOR = 1,	  /* it would have been denied */
	TF_EVENT_UNREACHABLE = 2, /* the path ends at a root that is mounted nowhere */
	TF_EVENT_NO_MOUNT = 8,	  /* the path begins at the file system's root, not the namespace's */
	TF_EVENT_PROCESS = 16,	  /* the object is the process whose number ino is */
	TF_EVENT_NO_OBJECT = 32,  /* the operation has no object */
	TF_EVENT_CUT = 4,	  /* the path is longer or deeper than a record holds: its upper end is missing */
};

/*
 * One jail; the index in tf_jails is its slot. Written by the loader; only the counters are written by programs.
 * The loader changes policy and flags of a live jail by single aligned 32-bit stores, so that a program sees the old
 * or the new value and never a mixture.
 */
struct tf_jail {
	__u64 id;
	__u64 denials; /* verdicts that denied, or would have in monitor mode */
	__u64 lost;    /* events that found the ring full */
	__u32 policy;  /* first part of the grants' key: swapping it replaces the whole policy at once */
	__u32 flags;   /* enum tf_jail_flag */
	__u32 parent;  /* slot + 1 of the jail around this one; 0: none */
	__u32 rights;  /* of the workspace: what it says of executing holds for memory files as well */
};
_Static_assert(sizeof(struct tf_jail) == 40, "tf_jail");

/* A cgroup in a jail, in tf_members by cgroup id. The jail's id guards against a slot that was given away. */
struct tf_member {
	__u64 jail;
	__u32 slot;
	__u32 pad;
};
_Static_assert(sizeof(struct tf_member) == 16, "tf_member");

/* The root directory that the tasks of a pending jail will have, by the jail's slot. */
struct tf_root {
	__u64 ino;
	__u64 volume;
	__u32 dev;
	__u32 generation;
	__u32 armed; /* 1: a task has been */
	__u32 pad;
};
_Static_assert(sizeof(struct tf_root) == 32, "tf_root");

/* An inode as the kernel tells it, for one policy. */
struct tf_grant_key {
	__u64 ino;
	__u64 volume; /* btrfs: the subvolume's root id; overlayfs: 0 for directories, 1 for others; elsewhere 0 */
	__u32 dev;    /* super_block.s_dev: major << 20 | minor */
	__u32 policy;
};
_Static_assert(sizeof(struct tf_grant_key) == 24, "tf_grant_key");

struct tf_grant {
	__u64 expires; /* nanoseconds of boot time (CLOCK_BOOTTIME); 0: never; TF_GONE */
	__u32 generation; /* the inode's, or where that is 0 the object's serial number, see tf_objects */
	__u16 rights; /* enum tf_right and enum tf_mark */
	__u16 node;   /* the object's place on the way to a denied name, see tf_names; 0: none is denied below it */
};
_Static_assert(sizeof(struct tf_grant) == 16, "tf_grant");

/*
 * Rights beyond the policy's, for a time. An expansion adds to what the grant around it gives, down from that grant, and
 * to nothing else: where no grant is around it, or one that gives nothing, it gives nothing.
 */
struct tf_expansion {
	__u64 id;
	__u64 expires; /* nanoseconds of boot time; TF_NEVER; 0: the place is free */
	__u32 generation;
	__u32 rights; /* enum tf_right */
};
_Static_assert(sizeof(struct tf_expansion) == 24, "tf_expansion");

/* All that one object has under one policy. They know nothing of one another. */
struct tf_expanded {
	struct tf_expansion each[TF_MAX_EXPANSIONS];
};
_Static_assert(sizeof(struct tf_expanded) == 192, "tf_expanded");

/*
 * Denied names are paths, so that they hold for what does not exist yet. All of a policy make one tree; its nodes are the
 * directories on the way, and a grant knows which of them it is. An edge is a name below a node, by its hash: two names
 * with one hash are both denied.
 */
struct tf_name_key {
	__u64 hash; /* tf_hash_name */
	__u32 policy;
	__u16 node;
	__u16 pad;
};
_Static_assert(sizeof(struct tf_name_key) == 16, "tf_name_key");

struct tf_name {
	__u32 node; /* where the name leads; 0: it is denied, with all below it */
};


/* The inode of a pseudo terminal in its devpts. */
struct tf_pty_key {
	__u64 ino;
	__u32 dev;
	__u32 pad;
};
_Static_assert(sizeof(struct tf_pty_key) == 16, "tf_pty_key");

/* What tf_learn found behind a descriptor of the calling thread. */
struct tf_identity {
	__u64 ino;
	__u64 volume;
	__u64 magic; /* super_block.s_magic */
	__u32 dev;
	__u32 generation;
	__u32 mode; /* i_mode */
	__u32 rdev; /* of a device node: major << 20 | minor */
};
_Static_assert(sizeof(struct tf_identity) == 40, "tf_identity");

/* The context tf_learn is run with; the kernel copies it back. */
struct tf_learning {
	__s32 fd;     /* -1: only inside is asked */
	__s32 err;    /* 0, or a negative errno */
	__u32 inside; /* 1: the calling task is itself in a jail */
	__u32 removed; /* 1: the inode has no name any more, and its number may soon be another's */
	struct tf_identity found;
};
_Static_assert(sizeof(struct tf_learning) == 56, "tf_learning");

/* How tf_judge looks at an object. */
enum tf_judge_as {
	TF_JUDGE_FILE = 0,   /* to be opened: read, write, execute */
	TF_JUDGE_OBJECT = 1, /* as what path operations are about, and directories to make a name in */
	TF_JUDGE_NAME = 2,   /* to be removed or moved away */
	TF_JUDGE_LINK = 3,   /* a symbolic link that is to be followed */
};

/* The context tf_judge is run with; the kernel copies it back. */
struct tf_judging {
	__s32 fd;    /* of the calling thread */
	__s32 err;   /* 0, or a negative errno: then nothing below is set */
	__u32 slot;  /* of the jail that is asked */
	__u32 as;    /* enum tf_judge_as */
	__u32 need;  /* enum tf_right */
	__u32 code;  /* enum tf_code: the answer */
	__u32 rights; /* that hold at the object */
	__u32 found; /* key names the grant that decided */
	struct tf_grant_key key;
	__s32 task;  /* of the calling thread: the entry in /proc of the task that would ask; -1: none, which has no terminal */
	__u32 pad;
};
_Static_assert(sizeof(struct tf_judging) == 64, "tf_judging");

/*
 * What a passed verification was about: for each attached program, in the loader's order, the three numbers that tell
 * it from any other. It counts while all of them are found again. count 0: nothing was proven.
 */
struct tf_proof_entry {
	__u32 program;
	__u32 link;
	__u64 tag; /* the kernel's digest of the program's instructions */
};
struct tf_proof {
	__u64 time;	     /* CLOCK_REALTIME, nanoseconds */
	__u8 boot[16];	     /* boot id */
	__u8 build[32];	     /* SHA-256 of the object file that was loaded */
	__u32 count;
	__u32 absent; /* of the operations that a kernel may lack or forbid, those that this one did: the loader's order */
	struct tf_proof_entry entries[TF_MAX_ATTACHED];
};

/* Verdicts of canary jails, by hook. */
struct tf_canary_count {
	__u64 allowed;
	__u64 denied;
};

/*
 * The record of one verdict. The path follows it: path_len bytes of names, each with a zero byte, the object's first
 * and the one below the root of the mount namespace last.
 */
struct tf_event {
	__u64 time; /* CLOCK_BOOTTIME, nanoseconds */
	__u64 jail;
	__u64 cgroup;
	__u64 ino;
	__u32 dev;
	__u32 pid;
	__u32 tid;
	__u32 uid;
	__s32 error; /* negative errno that the caller got, or would have */
	__u16 hook;
	__u16 op;
	__u16 code;
	__u16 flags;
	__u32 path_len;
	__u32 arg; /* ioctl: the command; signal: its number; capable: the capability */
	__u32 pad;
	char comm[16];
};
_Static_assert(sizeof(struct tf_event) == 88, "tf_event");

/* State of the whole enforcer, in global data that the loader maps. */
struct tf_global {
	__u64 members[TF_MEMBER_BITS / 64]; /* bit (cgroup id mod TF_MEMBER_BITS): may be in tf_members */
	__u32 overflow;			    /* tf_members was full once: the subject test walks the ancestors */
	__u32 btrfs_ready;		    /* the three offsets below are set */
	__u32 btrfs_inode;		    /* offset of vfs_inode in struct btrfs_inode */
	__u32 btrfs_root;		    /* offset of root in struct btrfs_inode */
	__u32 btrfs_id;			    /* offset of root_key.objectid in struct btrfs_root */
	__u32 next_policy;		    /* the last policy number given out; none is ever used twice */
	__u32 arming;			    /* a pending jail was made since the programs were loaded */
	__u32 epoch;			    /* raised after every change of grants, jails or members; see cache.h */
	__u32 next_serial;		    /* the last serial number given to an object; none is ever used twice */
	__u32 disarmed;			    /* marks that ended with their task, so that a verification sees it happen */
	__u64 attached[2];		    /* bit i: the loader's i-th program exists on this kernel and was attached */
	/*
	 * How many grants have an inode number that falls into a cell, modulo TF_GRANTED_CELLS. Counted up before a grant
	 * is written and down after it is deleted, so that zero means: no grant. A full cell stays full. Those that may be
	 * of a regular file are counted by themselves as well: small numbers are everywhere, but files are granted rarely.
	 */
	__u16 granted[TF_GRANTED_CELLS];
	__u16 granted_files[TF_GRANTED_CELLS];
};

#endif
