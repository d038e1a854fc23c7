package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"github.com/thenforce/thenforce/internal/eventlog"
	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/loader"
	"golang.org/x/sys/unix"
)

// journal is where the host's expansions are recorded.
var journal = filepath.Join(eventlog.Dir, "expansions.journal")

// reconcile makes the kernel and the journal of expansions say the same, towards less access, and tells what it did.
func reconcile(enforcer *loader.Enforcer) {
	found, err := enforcer.Reconcile(journal)
	for _, difference := range found {
		logrus.Warn(difference)
	}
	if err != nil {
		logrus.Warnf("expansions: %v", err)
	}
}

func (a *app) jailModeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "mode ID enforce|monitor",
		Short: "Let a live jail deny, or only record what it would deny",
		Args:  exactArgs("ID", "MODE"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return []string{"enforce", "monitor"}, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			var mode engine.Mode
			if err := mode.UnmarshalText([]byte(args[1])); err != nil {
				return usage(fmt.Errorf("mode %q: use enforce or monitor", args[1]))
			}
			return withJail(args[0], func(enforcer *loader.Enforcer, jail *loader.Jail) error {
				return enforcer.SetMode(jail.ID, mode)
			})
		},
	}
}

// actionNames are the classes of actions that an expansion can be for.
var actionNames = []string{
	engine.ActionReadFile, engine.ActionListDir, engine.ActionSearch, engine.ActionWriteFile, engine.ActionDelete, engine.ActionRunCommand,
}

func (a *app) jailGrantCommand() *cobra.Command {
	var (
		actions []string
		expires time.Duration
		reason  string
	)
	cmd := &cobra.Command{
		Use:   "grant ID PATH --actions A,B [--expires TIME] --reason TEXT",
		Short: "Give a live jail more rights below PATH, for a time",
		Long: `Give a live jail more rights below PATH, for a time: an expansion. It adds to what
the jail's policy grants there, and to nothing else: it lifts neither none nor a
denied name, and where the policy grants nothing it is refused. Several on one
path hold independently of each other. The kernel ends each at its time by
itself. Prints the expansion's id, for jail revoke.

Actions: read_file, list_dir, search (read), write_file (write and create),
delete, run_command (execute).`,
		Example: `  thenforce jail grant build /srv/repo/dist --actions write_file,delete --expires 10m --reason "release 1.2"`,
		Args:    exactArgs("ID", "PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(actions) == 0 {
				return usage(fmt.Errorf("--actions is missing: name some of %s", strings.Join(actionNames, ", ")))
			}
			for _, action := range actions {
				if !slices.Contains(actionNames, action) {
					return usage(fmt.Errorf("--actions %q: use some of %s", action, strings.Join(actionNames, ", ")))
				}
			}
			if strings.TrimSpace(reason) == "" {
				return usage(errors.New("--reason is missing: say what it is for"))
			}
			request := engine.ExpansionRequest{ActionClasses: actions, Reason: reason}
			if cmd.Flags().Changed("expires") {
				if expires <= 0 {
					return usage(fmt.Errorf("--expires %v: use a time above 0, such as 10m", expires))
				}
				request.ExpiresAt = time.Now().Add(expires)
			}
			object, err := openObject(args[1])
			if err != nil {
				return err
			}
			defer object.Close()
			request.ResourceIdentity = object.Name()
			return withJail(args[0], func(enforcer *loader.Enforcer, jail *loader.Jail) error {
				x, err := enforcer.Expand(journal, jail.ID, object, request)
				if err != nil {
					return err
				}
				if a.json {
					return printJSON(os.Stdout, x)
				}
				_, err = fmt.Println(x.ExpansionID)
				return err
			})
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&actions, "actions", nil, "what may be done there, with commas between")
	flags.DurationVar(&expires, "expires", 0, "end it after this `TIME`, such as 10m (default: never)")
	flags.StringVar(&reason, "reason", "", "what it is for, shown in listings")
	err := cmd.RegisterFlagCompletionFunc("actions", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return actionNames, cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the flag's name mistyped
	}
	return cmd
}

// openObject opens what is to be granted. No link is followed: whoever may write there, somebody in the jail perhaps,
// would choose what is granted.
func openObject(path string) (*os.File, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	for {
		fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
		})
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		case errors.Is(err, unix.ELOOP):
			to, resolving := filepath.EvalSymlinks(path)
			if resolving != nil {
				to = "somewhere else"
			}
			return nil, fmt.Errorf("grant %s: it leads through a symbolic link to %s; name what is to be granted by its own path", path, to)
		default:
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

func (a *app) jailRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke ID EXPANSION",
		Short: "End an expansion of a live jail, at once and for good",
		Long: `End an expansion of a live jail, at once and for good: when the command has
returned, the kernel denies what only the expansion allowed. What was done under
it stays done, and what is open stays open.`,
		Args: exactArgs("ID", "EXPANSION"),
		RunE: func(_ *cobra.Command, args []string) error {
			return withJail(args[0], func(enforcer *loader.Enforcer, jail *loader.Jail) error {
				done, err := enforcer.Revoke(journal, jail.ID, args[1])
				if err == nil && !done {
					err = fmt.Errorf("expansion %q of jail %s: there is none, or it was revoked before (thenforce jail show %s)", args[1], jail.ID, jail.ID)
				}
				return err
			})
		},
	}
}

func (a *app) jailReplaceCommand() *cobra.Command {
	var flags policyFlags
	cmd := &cobra.Command{
		Use:   "replace ID --policy FILE",
		Short: "Give a live jail another policy, whole",
		Long: `Give a live jail another policy, whole: every operation is judged by the old one
or by the new one. Where the new one cannot be applied, the old one stays. What
run gave the jail beside its policy stays as well (a private /tmp, the files
behind 0 to 2), and so do expansions, if the workspace is the same.`,
		Args: exactArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("policy") && !cmd.Flags().Changed("workspace") {
				return usage(errors.New("--policy is missing: name a policy file, or give a whole policy by flags, with --workspace"))
			}
			policy, sets, err := compile(&flags)
			if err != nil {
				return err
			}
			if err := policy.refuseResources(); err != nil {
				return err
			}
			return withJail(args[0], func(enforcer *loader.Enforcer, jail *loader.Jail) error {
				replaced, err := enforcer.Replace(jail.ID, loader.JailSpec{Sets: sets})
				if err != nil {
					return err
				}
				for _, notice := range replaced.Notices {
					logrus.Info(notice)
				}
				reconcile(enforcer) // expansions of another workspace are over
				if a.json {
					return printJSON(os.Stdout, describe(replaced))
				}
				return nil
			})
		},
	}
	flags.register(cmd)
	return cmd
}
