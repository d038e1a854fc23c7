// SPDX-License-Identifier: Apache-2.0

package engine

import "fmt"

// A Preset is a table of grants that comes with the engine.
type Preset string

// PresetSystem is what ordinary programs need of a Linux system to start: to
// load and execute what is installed, to read the configuration in /etc but not
// its secrets, the harmless devices, and facts about the machine in /proc. It
// lets nothing be changed. A process's own part of /proc is not in it: that has
// no fixed objects, and the kernel programs judge it themselves.
const PresetSystem Preset = "system"

// ParsePresets reads the value of --preset: "none" or the name of a preset.
func ParsePresets(s string) ([]Preset, error) {
	if s == "none" {
		return nil, nil
	}
	if _, ok := presets[Preset(s)]; !ok {
		return nil, fmt.Errorf("parse preset %q: want system or none", s)
	}
	return []Preset{Preset(s)}, nil
}

// Paths returns the paths that the preset grants something at, as its table writes them: links in them are not followed,
// and the last component may hold "*".
func (p Preset) Paths() []string {
	var paths []string
	for _, entry := range presets[p] {
		paths = append(paths, entry.path)
	}
	return paths
}

// presetEntry is one line of a preset.
type presetEntry struct {
	// path is followed where it is a link, and the target granted; what is
	// missing is skipped. The last component may hold "*".
	path   string
	rights Rights
	// why says who needs it, or for none what it keeps.
	why string
}

var presets = map[Preset][]presetEntry{PresetSystem: presetSystem}

// presetSystem holds an entry before those inside it, so that these are left out
// where they add nothing.
var presetSystem = []presetEntry{
	// What starts programs. On merged systems all but /usr are links into it.
	{"/usr", Read | Exec, "programs, shared libraries and their data"},
	{"/usr/local", Read | Exec, "what the machine's owner installed, where it is a mount of its own"},
	{"/bin", Read | Exec, "#!/bin/sh, where not merged into /usr"},
	{"/sbin", Read | Exec, "ldconfig and others, where not merged"},
	{"/lib", Read | Exec, "shared libraries, where not merged"},
	{"/lib32", Read | Exec, "32-bit libraries, where not merged"},
	{"/lib64", Read | Exec, "the dynamic loader, ld-linux-x86-64.so.2"},
	{"/libx32", Read | Exec, "x32 libraries, where not merged"},

	// Configuration: ld.so.cache for every dynamic program; passwd, group,
	// nsswitch.conf, hosts for name look-ups; ssl/certs for TLS; localtime;
	// alternatives; the rc files of shells, git, python, apt.
	{"/etc", Read, "configuration"},
	// These are links out of /etc on many systems, and files bind mounted over
	// /etc in containers, where the grant on /etc does not reach.
	{"/etc/resolv.conf", Read, "name resolution; a link into /run with systemd-resolved"},
	{"/etc/hosts", Read, "name resolution; bind mounted in containers"},
	{"/etc/hostname", Read, "hostname -f; bind mounted in containers"},
	{"/etc/localtime", Read, "local time; a link"},

	// The secrets in /etc, as a jail may run as root.
	{"/etc/shadow", None, "password hashes"},
	{"/etc/shadow-", None, "password hashes, backup of shadow-utils"},
	{"/etc/gshadow", None, "group password hashes"},
	{"/etc/gshadow-", None, "group password hashes, backup of shadow-utils"},
	{"/etc/security/opasswd", None, "old password hashes (pam_pwhistory)"},
	{"/etc/sudoers", None, "who may become root"},
	{"/etc/sudoers.d", None, "who may become root"},
	{"/etc/doas.conf", None, "who may become root"},
	{"/etc/ssh/ssh_host_*_key", None, "the machine's ssh identity"},
	{"/etc/ssl/private", None, "private TLS keys"},
	{"/etc/pki/tls/private", None, "private TLS keys, Fedora"},
	{"/etc/letsencrypt", None, "private TLS keys and account keys"},
	{"/etc/krb5.keytab", None, "the machine's Kerberos keys"},
	{"/etc/kubernetes", None, "cluster credentials"},
	{"/etc/rancher", None, "cluster credentials, k3s and RKE"},
	{"/etc/wireguard", None, "private VPN keys"},
	{"/etc/openvpn", None, "private VPN keys"},
	{"/etc/ipsec.secrets", None, "private VPN keys"},
	{"/etc/ipsec.d/private", None, "private VPN keys"},
	{"/etc/swanctl/private", None, "private VPN keys"},
	{"/etc/ppp/chap-secrets", None, "dial-up and VPN passwords"},
	{"/etc/ppp/pap-secrets", None, "dial-up and VPN passwords"},
	{"/etc/NetworkManager/system-connections", None, "WLAN and VPN passwords"},
	{"/etc/wpa_supplicant", None, "WLAN passwords"},
	{"/etc/netplan", None, "WLAN passwords"},
	{"/etc/mysql/debian.cnf", None, "the maintenance account of MySQL"},
	{"/etc/credstore", None, "systemd credentials"},
	{"/etc/credstore.encrypted", None, "systemd credentials"},

	// Devices with no effect on anybody else. A node is granted as itself:
	// being inside a granted directory opens none.
	{"/dev/null", Read | Write, "every shell script"},
	{"/dev/zero", Read | Write, "dd, old allocators that map it"},
	{"/dev/full", Read | Write, "tests of programs' error paths"},
	{"/dev/random", Read | Write, "keys (gnupg, openssl); writing only stirs the pool"},
	{"/dev/urandom", Read | Write, "keys, hash seeds; writing only stirs the pool"},
	{"/dev/tty", Read | Write, "the task's own terminal: ssh, sudo, git ask there for a password"},
	{"/dev/ptmx", Read | Write, "new terminals: script, tmux, expect, node-pty"},
	{"/dev/pts/ptmx", Read | Write, "the same where /dev/ptmx is a link to it"},

	// Facts about the machine. Single files: their numbers are dynamic, and
	// the directories around them lead to other processes.
	{"/proc/cpuinfo", Read, "lscpu, the JVM, numpy: processor features"},
	{"/proc/meminfo", Read, "free, the JVM, node, make -l: memory sizes"},
	{"/proc/stat", Read, "top, node's os.cpus(): processor times"},
	{"/proc/loadavg", Read, "uptime, make -l, ninja -l"},
	{"/proc/uptime", Read, "uptime, ps: start times"},
	{"/proc/version", Read, "scripts that look for WSL or a distribution"},
	{"/proc/filesystems", Read, "libselinux at the start of ls, cp, mv"},
	{"/proc/vmstat", Read, "vmstat, the JVM"},
	{"/proc/swaps", Read, "free, node-exporter style tools"},
	{"/proc/sys/crypto/fips_enabled", Read, "libgcrypt, gnutls, openssl at start"},
	{"/proc/sys/fs/file-max", Read, "databases and servers: descriptor limit"},
	{"/proc/sys/fs/nr_open", Read, "sudo, systemd tools: descriptor limit"},
	{"/proc/sys/fs/pipe-max-size", Read, "F_SETPIPE_SZ users: pv, git"},
	{"/proc/sys/fs/inotify/max_user_watches", Read, "file watchers: webpack, vite, watchman"},
	{"/proc/sys/fs/inotify/max_user_instances", Read, "file watchers"},
	{"/proc/sys/kernel/cap_last_cap", Read, "libcap: which capabilities exist"},
	{"/proc/sys/kernel/hostname", Read, "hostname, bash"},
	{"/proc/sys/kernel/domainname", Read, "domainname"},
	{"/proc/sys/kernel/ngroups_max", Read, "sysconf(_SC_NGROUPS_MAX): id, newgrp, sudo"},
	{"/proc/sys/kernel/osrelease", Read, "libc and scripts: kernel release"},
	{"/proc/sys/kernel/ostype", Read, "scripts"},
	{"/proc/sys/kernel/version", Read, "scripts"},
	{"/proc/sys/kernel/overflowuid", Read, "bubblewrap, podman: the uid of nobody"},
	{"/proc/sys/kernel/overflowgid", Read, "bubblewrap, podman: the gid of nobody"},
	{"/proc/sys/kernel/pid_max", Read, "ps, the JVM: width of a pid"},
	{"/proc/sys/kernel/threads-max", Read, "the JVM, go test -race: thread limit"},
	{"/proc/sys/kernel/random/boot_id", Read, "file locks of emacs, Firefox, sqlite tools"},
	{"/proc/sys/kernel/random/uuid", Read, "shell scripts: a fresh uuid"},
	{"/proc/sys/kernel/random/entropy_avail", Read, "gnupg, openssl tools"},
	{"/proc/sys/kernel/random/poolsize", Read, "gnupg"},
	{"/proc/sys/kernel/seccomp/actions_avail", Read, "libseccomp: what the kernel knows"},
	{"/proc/sys/kernel/shmmax", Read, "postgres: shared memory limit"},
	{"/proc/sys/net/core/somaxconn", Read, "Go's net.Listen, node: length of the listen queue"},
	{"/proc/sys/vm/max_map_count", Read, "the JVM, Elasticsearch: mapping limit"},
	{"/proc/sys/vm/mmap_min_addr", Read, "wine, qemu-user: lowest address"},
	{"/proc/sys/vm/overcommit_memory", Read, "malloc of glibc and jemalloc, redis"},
	// A folder of facts alone; nobody in a jail may write there.
	{"/sys/devices/system/cpu", Read, "sysconf(_SC_NPROCESSORS_ONLN) of glibc, jemalloc; lscpu, the JVM, hwloc: topology, caches"},
	{"/sys/devices/system/node", Read, "numactl, lscpu, libnuma in databases: which memory is near"},
	{"/sys/kernel/cpu_byteorder", Read, "lscpu"},
	{"/sys/kernel/mm/transparent_hugepage/enabled", Read, "jemalloc, the JVM, redis"},
	{"/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", Read, "the Go runtime at start"},
}
