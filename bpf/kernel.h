/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The kernel's structures, cut down to the fields that the programs read. CO-RE relocates each access against the
 * running kernel's BTF, so order, gaps and sizes here mean nothing; names and pointer depths do.
 */
#ifndef TF_KERNEL_H
#define TF_KERNEL_H

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kernfs_node {
	__u64 id;
};

struct cgroup_subsys_state {
	struct cgroup_subsys_state *parent;
};

struct cgroup_root {
	int hierarchy_id;
};

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
	struct cgroup_root *root;
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

struct seqcount {
	unsigned int sequence;
};

struct super_block {
	__u32 s_dev;
	unsigned long s_flags;
	unsigned long s_magic;
	void *s_encoding;
};

struct inode_operations {
	void *create;
};

struct inode {
	struct inode_operations *i_op;
	__u16 i_mode;
	unsigned int i_flags;
	unsigned long i_ino;
	unsigned int i_nlink;
	__u32 i_rdev;
	__u32 i_generation;
	struct super_block *i_sb;
};

struct qstr {
	__u32 len;
	const unsigned char *name;
};

struct dentry_operations {
	void *d_compare;
};

struct seqcount_spinlock {
	struct seqcount seqcount;
};

struct dentry {
	struct seqcount_spinlock d_seq;
	struct dentry *d_parent;
	struct qstr d_name;
	struct inode *d_inode;
	const struct dentry_operations *d_op;
	struct super_block *d_sb;
};

struct renamedata {
	struct dentry *new_dentry;
	unsigned int flags;
};

struct vfsmount {
	struct dentry *mnt_root;
	struct super_block *mnt_sb;
	int mnt_flags;
};

struct mnt_namespace;

struct mount {
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
	struct mnt_namespace *mnt_ns;
	__u64 mnt_id_unique; /* since 6.8 */
};

struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
};

struct file {
	__u32 f_mode;
	__u32 f_flags;
	struct inode *f_inode;
	struct path f_path;
	void *private_data;
};

struct backing_file {
	struct file file;
	struct path user_path;
};

struct fdtable {
	__u32 max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct upid {
	int nr;
};

struct hlist_node {
	struct hlist_node *next;
};

struct hlist_head {
	struct hlist_node *first;
};

struct pid {
	__u32 level;
	struct hlist_head tasks[4];
	struct upid numbers[1];
};

struct tty_driver {
	int major;
	int minor_start;
};

struct tty_struct {
	struct tty_driver *driver;
	int index;
	struct tty_struct *link;
	void *driver_data;
};

struct tty_file_private {
	struct tty_struct *tty;
};

struct signal_struct {
	struct pid *pids[4];
	struct tty_struct *tty;
};

struct cred;

/* io_uring/io-wq.c, io_uring/io_uring.h: what a worker is at */
struct io_wq_work {
	unsigned int flags;
};

struct io_worker {
	struct io_wq_work *cur_work;
};

struct io_kiocb {
	struct io_wq_work work;
	const struct cred *creds;
};

struct list_head {
	struct list_head *next;
};

struct task_struct {
	unsigned int flags;
	int pid;
	int tgid;
	struct task_struct *real_parent;
	struct list_head children;
	struct list_head sibling;
	void *worker_private;
	struct pid *thread_pid;
	struct hlist_node pid_links[4];
	const struct cred *real_cred;
	const struct cred *cred;
	struct fs_struct *fs;
	struct files_struct *files;
	struct signal_struct *signal;
	struct css_set *cgroups;
};

struct ctl_table_header;
struct ctl_table;

struct proc_inode {
	struct pid *pid;
	struct ctl_table_header *sysctl;
	const struct ctl_table *sysctl_entry;
	struct inode vfs_inode;
};

struct fs_struct {
	struct path root;
};

struct user_namespace {
	int level;
};

struct iattr {
	unsigned int ia_valid;
};

struct vm_area_struct {
	unsigned long vm_flags;
	struct file *vm_file;
};

struct sock_cgroup_data {
	struct cgroup *cgroup;
};

struct sock {
	struct sock_cgroup_data sk_cgrp_data;
};

struct socket {
	struct sock *sk;
};

struct unix_address;

struct unix_sock {
	struct sock sk;
	struct unix_address *addr;
	struct path path;
};

#pragma clang attribute pop

/* linux/fs.h, linux/mount.h: values that are not in any uapi header */
#define FMODE_READ 0x1
#define FMODE_WRITE 0x2
#define FMODE_EXEC 0x20 /* in f_flags: the open is an exec's */
#define SB_KERNMOUNT (1 << 22)
#define MNT_INTERNAL 0x4000

#define S_CASEFOLD (1 << 15)

#define RENAME_EXCHANGE 2 /* linux/fs.h (uapi) */

#define O_WRONLY 00000001
#define O_RDWR 00000002
#define O_ACCMODE 00000003
#define O_TRUNC 00001000
#define O_TMPFILE_BIT 020000000

#define S_IFMT 00170000
#define S_IFBLK 0060000
#define S_IFCHR 0020000
#define S_IFREG 0100000
#define S_IFDIR 0040000

#define PF_IO_WORKER 0x10
#define PROT_EXEC 4
#define VM_EXEC 4
#define F_SETOWN 8
#define F_SETOWN_EX 15
#define F_SETLEASE 1024
#define CLONE_INTO_CGROUP 0x200000000ULL

#define ATTR_ATIME_SET (1 << 7)
#define ATTR_MTIME_SET (1 << 8)
#define ATTR_TIMES_SET (1 << 16)
#define ATTR_TOUCH (1 << 17)

/* linux/magic.h, and two that only mm/ and fs/ know */
#define ANON_INODE_MAGIC 0x09041934
#define BPF_FS_MAGIC 0xcafe4a11
#define CGROUP_MAGIC 0x27e0eb
#define CGROUP2_MAGIC 0x63677270
#define BTRFS_MAGIC 0x9123683E
#define EXT4_MAGIC 0xEF53
#define DEVPTS_MAGIC 0x1cd1
#define HUGETLBFS_MAGIC 0x958458f6
#define NSFS_MAGIC 0x6e736673
#define OVERLAYFS_MAGIC 0x794c7630
#define PIDFS_MAGIC 0x50494446
#define PIPEFS_MAGIC 0x50495045
#define PROC_MAGIC 0x9fa0
#define SECRETMEM_MAGIC 0x5345434d
#define SOCKFS_MAGIC 0x534F434B
#define TMPFS_MAGIC 0x01021994
#define XFS_MAGIC 0x58465342

/* linux/pid.h: enum pid_type */
#define PIDTYPE_PID 0
#define PIDTYPE_TGID 1
#define PIDTYPE_PGID 2

#endif
