package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/syslog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"github.com/thenforce/thenforce/internal/oci"
	"github.com/thenforce/thenforce/internal/policyfile"
	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/loader"
	"golang.org/x/sys/unix"
)

// Where the host says what containers may do.
const (
	hookConfig   = "/etc/thenforce/hook.yaml"
	hookPolicies = "/etc/thenforce/policies"
)

// loadTime bounds the first load of the programs after a boot and their proof. Runtimes kill the hook later than that.
const loadTime = 45 * time.Second

func (a *app) hookCommand() *cobra.Command {
	var install, runtime string
	cmd := &cobra.Command{
		Use:   "hook [--install DIR | --runtime RUNTIME -- ARG...]",
		Short: "Put containers into jails, called by their runtime",
		Long: `Put containers into jails, called by their runtime: an OCI hook for the stages
createRuntime and poststop, which reads the container's state from standard
input. What a container may do is said in ` + hookConfig + `.
When this fails, the runtime does not start the container; the error is on
standard error, which crun shows nobody, and in syslog.

--install writes the file that makes podman and CRI-O call the hook for every
container. --runtime is for Docker and containerd, which have no such files: it
adds the hook to the bundle that is to be started and becomes RUNTIME.`,
		Example: `  thenforce hook --install /etc/containers/oci/hooks.d
  thenforce hook --runtime /usr/bin/runc -- create --bundle /run/x x`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case install != "" && runtime != "":
				return usage(errors.New("--install and --runtime exclude each other"))
			case len(args) > 0 && runtime == "":
				return usage(fmt.Errorf("argument %q: the hook takes none, but with --runtime", args[0]))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			switch {
			case install != "":
				return installHook(install)
			case runtime != "":
				return becomeRuntime(runtime, args)
			}
			err := runHook()
			if err != nil {
				tellSyslog(err)
			}
			return err
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().StringVar(&install, "install", "", "write "+oci.HooksFileName+" to `DIR`, a hooks.d of podman or CRI-O")
	cmd.Flags().StringVar(&runtime, "runtime", "", "add the hook to the bundle that the arguments name, and become `RUNTIME`")
	if err := cmd.MarkFlagDirname("install"); err != nil {
		panic(err)
	}
	return cmd
}

// tellSyslog repeats an error where administrators look: crun shows nobody what its hooks print.
func tellSyslog(err error) {
	log, unheard := syslog.New(syslog.LOG_DAEMON|syslog.LOG_ERR, "thenforce")
	if unheard != nil {
		return // no syslog here; standard error has it
	}
	defer log.Close()
	log.Err("hook: " + err.Error())
}

func installHook(dir string) error {
	executable, err := os.Executable()
	if err != nil {
		return err
	}
	if err := oci.Install(dir, executable); err != nil {
		return err
	}
	if _, err := os.Stat(hookConfig); errors.Is(err, fs.ErrNotExist) {
		logrus.Warnf("%s is missing: until it is there, no container starts", hookConfig)
	}
	return nil
}

// becomeRuntime hands a call of a container runtime on, once the container that it makes has the hook.
func becomeRuntime(runtime string, args []string) error {
	if !filepath.IsAbs(runtime) {
		return usage(fmt.Errorf("--runtime %s: name it by an absolute path", runtime))
	}
	bundle, err := oci.NewBundle(args)
	if err != nil {
		return err
	}
	if bundle != "" {
		executable, err := os.Executable()
		if err != nil {
			return err
		}
		if err := oci.Inject(bundle, executable); err != nil {
			return err
		}
	}
	err = unix.Exec(runtime, append([]string{runtime}, args...), os.Environ())
	return &fs.PathError{Op: "execute", Path: runtime, Err: err}
}

// runHook is one call by a runtime.
func runHook() error {
	state, stage, err := oci.ReadState(os.Stdin)
	if err != nil {
		return err
	}
	if stage == oci.Stop {
		return endContainer(state)
	}
	config, err := readHookConfig()
	if err != nil {
		return err
	}
	settings, err := config.For(state.Annotations)
	if err != nil {
		return fmt.Errorf("container %s: %w", state.ID, err)
	}
	if settings.Skip {
		return nil
	}
	policy, err := readContainerPolicy(filepath.Join(hookPolicies, settings.Policy+".yaml"))
	if err != nil {
		return fmt.Errorf("container %s: %w", state.ID, err)
	}
	if err := refuseRestore(); err != nil {
		return fmt.Errorf("container %s: %w", state.ID, err)
	}

	var enforcer *loader.Enforcer
	var status engine.EnforcementStatus
	err = inTime(loadTime, "loading and proving the programs", func() (err error) {
		enforcer, status, err = loader.Open(loader.Options{})
		return err
	})
	if err != nil {
		return err
	}
	if enforcer != nil {
		defer enforcer.Close()
	}
	if err := status.Err(); err != nil {
		if !settings.AllowUnverified {
			return fmt.Errorf("container %s: %w", state.ID, withFix(err))
		}
		logrus.Warnf("container %s: %v: it is NOT reliably confined", state.ID, err)
		if enforcer == nil {
			return nil
		}
	}
	return inTime(settings.Timeout, "making the jail (timeout in "+hookConfig+")", func() error {
		return confineContainer(enforcer, status, state, settings, policy)
	})
}

// inTime gives up waiting for f after a time. The program ends then, and with it what f was at; a jail that was not yet
// whole is collected later.
func inTime(limit time.Duration, what string, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		return fmt.Errorf("%s took longer than %v", what, limit)
	}
}

func confineContainer(e *loader.Enforcer, status engine.EnforcementStatus, state specs.State, settings oci.Settings, p *policy) error {
	container, err := oci.Open(state, status.Cgroup.Mount)
	if err != nil {
		return err
	}
	defer container.Close()
	var sets engine.AllowedSets
	err = container.Inside(func(probes engine.Probes) (err error) {
		sets, err = settings.Compile(p.Policy, probes)
		return p.locate(err)
	})
	if err != nil {
		return fmt.Errorf("container %s: %w", state.ID, err)
	}
	jail, err := e.CreateJail(loader.JailSpec{
		Cgroup: container.Cgroup(), CgroupPath: container.CgroupPath(), Name: oci.JailName(state.ID), Sets: sets, Root: container.Root(),
	})
	if err != nil {
		return fmt.Errorf("container %s: %w", state.ID, err)
	}
	for _, notice := range jail.Notices {
		logrus.Info(notice)
	}
	return nil
}

// endContainer ends the jail of a container that is gone. One that still has tasks keeps it: then it is another
// runtime's container with the same id.
func endContainer(state specs.State) error {
	enforcer, err := openAny()
	if enforcer == nil || err != nil {
		return err
	}
	defer enforcer.Close()
	return enforcer.EndJail(oci.JailName(state.ID))
}

func readHookConfig() (oci.Config, error) {
	text, err := readTrusted(hookConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return oci.Config{}, fmt.Errorf("%w: write it to say what containers may do (docs/containers.md)", err)
	}
	if err != nil {
		return oci.Config{}, err
	}
	config, err := oci.ParseConfig(text)
	if err != nil {
		return oci.Config{}, &fs.PathError{Op: "read", Path: hookConfig, Err: err}
	}
	return config, nil
}

// readTrusted reads a file that decides over others: nobody but root may be able to change it.
func readTrusted(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	if st.Uid != 0 || st.Mode&0o022 != 0 {
		return nil, &fs.PathError{Op: "trust", Path: name, Err: errors.New("others than root can change it: chown root and chmod go-w it")}
	}
	return io.ReadAll(io.LimitReader(f, policyfile.MaxSize+1))
}

// refuseRestore: CRIU brings processes back in the middle of what they did, without an exec by which they would be armed.
func refuseRestore() error {
	name := fmt.Sprintf("/proc/%d/cmdline", os.Getppid())
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if slices.Contains(strings.Split(string(text), "\x00"), "restore") {
		return errors.New("its runtime restores it from a checkpoint: its processes would never execute anything, and so never be judged")
	}
	return nil
}

// readContainerPolicy reads a policy for containers. All paths in it are those of the container, so its workspace is
// absolute, or missing where annotations name it.
func readContainerPolicy(name string) (*policy, error) {
	text, err := readTrusted(name)
	if err != nil {
		return nil, err
	}
	f, err := policyfile.Parse(name, text)
	if err != nil {
		return nil, err
	}
	if f.Workspace != nil && !path.IsAbs(*f.Workspace) {
		return nil, f.Locate(&engine.PolicyError{
			Field: "workspace", Value: *f.Workspace, Err: errors.New("is relative"), Fix: "name a directory of the container, from its root",
		})
	}
	p := &policy{file: f}
	if err := p.take(f, time.Now()); err != nil {
		return nil, err
	}
	if err := p.refuseResources(); err != nil {
		return nil, err
	}
	if f.Presets == nil {
		p.Presets = []engine.Preset{engine.PresetSystem}
	}
	p.FollowMountPoints = f.Follow.MountPoints != nil && *f.Follow.MountPoints
	p.NoSymlinks = f.NoSymlinks != nil && *f.NoSymlinks
	return p, nil
}
