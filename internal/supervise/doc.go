// Package supervise starts and looks after the command of thenforce run: it makes the command's surroundings (user,
// private /tmp, descriptors, process group), starts it inside a cgroup, passes signals and the terminal on, and ends
// what the command leaves behind. Linux only; on other systems the package is empty. It knows nothing of BPF: the cgroup
// that it is handed may be a jail or not.
//
// # Starting
//
// There is no second executable and no re-exec. An OS thread is set aside ([Start]), given what the command shall
// inherit (working directory, mount namespace, no_new_privs), and the command is started from it with clone3(2) and
// CLONE_INTO_CGROUP, so it is a member of the cgroup before its first instruction, and even the execve(2) that starts it
// is made inside. The thread ends afterwards; nothing of the process itself was changed.
//
// The command is looked up as execvp(3) does, by trying: each candidate is really executed as the target user inside
// the cgroup. What such an attempt answers is the answer; there is no check beforehand that could disagree with it.
//
// # Terminal
//
// The command always has a process group of its own, so that a signal sent to thenforce's group (by a terminal, a shell
// or a CI runner) reaches it once, by way of thenforce. With a controlling terminal it becomes the foreground group:
// at once when stdin and stdout are terminals, else when it first asks for the terminal (SIGTTIN, SIGTTOU). The
// difference is for pipelines: in "thenforce run git log | less" it is less that needs the terminal. When the command
// stops, thenforce takes the terminal back and stops its own group by the same signal, so that the user's shell, and a
// script in between, see a stopped job; on SIGCONT everything is put back.
//
// # Ending
//
// When the command ends, the rest of its cgroup gets SIGTERM and, after [Grace], SIGKILL; cgroups below are removed. The
// same is done when the start fails.
package supervise
