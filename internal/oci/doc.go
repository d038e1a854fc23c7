// Package oci is what "thenforce hook" does for a container runtime: it puts a container into a jail before anything of
// the container runs, and ends the jail with the container. Linux only; on other systems only the parsing works.
//
// # When it is called
//
// As a hook of the runtime specification, in the stages createRuntime and poststop. In createRuntime the container's
// mount namespace is complete and its root not pivoted yet: its first process still has the host's root directory, and the
// container's lies below it, with all volumes mounted. So everything that the policy names is looked up below a
// descriptor of that directory, in that namespace, and never by a path of the host ([Container.Root]); no link and no ".."
// leads out of it.
//
// The jail is made pending (loader.JailSpec.Root): the runtime goes on preparing the container in the jailed cgroup, and
// a task is judged from its own exec inside the container on. The same holds for everything that joins later.
//
// # Who decides
//
// The host, in /etc/thenforce/hook.yaml ([Config]). The container's author can ask for something else by annotations
// ([Settings]); what would widen the jail is refused, and so is the container, unless the file allows that annotation.
//
// # Runtimes that read no hooks.d
//
// podman and CRI-O take hooks from folders ([Install]). Docker and containerd do not, but let the host name another
// runtime: [Inject] adds the hook to the bundle that they hand to it.
package oci
