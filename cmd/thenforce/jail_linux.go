package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"github.com/thenforce/thenforce/internal/cgroup"
	"github.com/thenforce/thenforce/internal/eventlog"
	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/loader"
)

// jailJSON is a jail as "jail list" prints it.
type jailJSON struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Parent    string    `json:"parent"` // id of the jail around it, or empty
	Cgroup    string    `json:"cgroup"`
	CgroupID  string    `json:"cgroupId"`
	Workspace string    `json:"workspace"`
	Mode      string    `json:"mode"`
	State     string    `json:"state"`
	Grants    int       `json:"grants"`
	Denials   uint64    `json:"denials"`
	CreatedAt time.Time `json:"createdAt"`
}

func describe(j *loader.Jail) jailJSON {
	state := "armed"
	switch {
	case j.Gone:
		state = "gone"
	case j.Pending:
		state = "pending"
	}
	return jailJSON{
		ID: j.ID, Name: j.Name, Parent: j.Parent, Cgroup: j.Cgroup, CgroupID: strconv.FormatUint(j.CgroupID, 10), Workspace: j.Workspace,
		Mode: j.Mode.String(), State: state, Grants: j.GrantCount, Denials: j.Denials, CreatedAt: j.CreatedAt,
	}
}

func (a *app) jailCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "jail",
		Short: "Make, list, show, change and delete jails",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		a.jailCreateCommand(), a.jailListCommand(), a.jailShowCommand(), a.jailExecCommand(), a.jailModeCommand(),
		a.jailGrantCommand(), a.jailRevokeCommand(), a.jailReplaceCommand(), a.jailDeleteCommand(),
	)
	return cmd
}

func (a *app) jailCreateCommand() *cobra.Command {
	var (
		flags      policyFlags
		path, name string
		unverified bool
	)
	cmd := &cobra.Command{
		Use:   "create --cgroup PATH [flags]",
		Short: "Put an existing cgroup, and all below it, into a jail",
		Long: `Put an existing cgroup, and all below it, into a jail. From then on every task in
it is judged. What its tasks have open already stays open. Such a jail has no
/tmp of its own: grant one. Prints the id of the jail.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if path == "" {
				return usage(fmt.Errorf("--cgroup is missing: name a directory of the cgroup v2 hierarchy"))
			}
			policy, sets, err := compile(&flags)
			if err != nil {
				return err
			}
			if err := policy.refuseResources(); err != nil {
				return err
			}
			group, err := cgroup.Open(path)
			if err != nil {
				return err
			}
			defer group.Close()
			enforcer, err := openVerified(unverified)
			if err != nil {
				return err
			}
			defer enforcer.Close()
			jail, err := enforcer.CreateJail(loader.JailSpec{Cgroup: group.File(), CgroupPath: path, Name: name, Sets: sets})
			if err != nil {
				return err
			}
			for _, notice := range jail.Notices {
				logrus.Info(notice)
			}
			caveats, err := enforcer.Caveats(jail)
			if err != nil {
				logrus.Warnf("look at what the tasks of jail %s hold: %v", jail.ID, err)
			}
			if len(caveats) > 0 {
				logrus.Warnf("tasks of jail %s hold %s that it would not let them open: they keep that (thenforce jail show %s)",
					jail.ID, count(uint64(len(caveats)), "object"), jail.ID)
			}
			if a.json {
				return printJSON(os.Stdout, describe(jail))
			}
			_, err = fmt.Println(jail.ID)
			return err
		},
	}
	flags.register(cmd)
	cmd.Flags().StringVar(&path, "cgroup", "", "directory of the cgroup v2 hierarchy")
	cmd.Flags().StringVar(&name, "name", "", "a name for the jail: 1 to 63 of a-z 0-9 . _ -")
	cmd.Flags().BoolVar(&unverified, "allow-unverified", false, "go on where enforcement is not verified")
	return cmd
}

// compile turns policy flags into sets for the kernel.
func compile(flags *policyFlags) (*policy, engine.AllowedSets, error) {
	policy, err := flags.policy()
	if err != nil {
		return nil, engine.AllowedSets{}, err
	}
	sets, err := policy.compileHere()
	return policy, sets, err
}

// openVerified opens the enforcer, or says why there is none that could be relied upon.
func openVerified(allowUnverified bool) (*loader.Enforcer, error) {
	enforcer, status, err := loader.Open(loader.Options{})
	if err != nil {
		return nil, err
	}
	unproven := status.Err()
	if unproven == nil || allowUnverified && enforcer != nil {
		if unproven != nil {
			logrus.Warn(unproven)
		}
		reconcile(enforcer)
		return enforcer, nil
	}
	if enforcer != nil {
		enforcer.Close()
	}
	return nil, exit(exitUnverified, withFix(unproven))
}

// withFix adds to an error that says why enforcement is unverified what can be done about it.
func withFix(err error) error {
	if fix := fixOf(err); fix != "" {
		return fmt.Errorf("%w; fix: %s", err, fix)
	}
	return err
}

// fixOf gives the fix of the first reason that has one, or nothing.
func fixOf(err error) string {
	var unverified *engine.UnverifiedError
	if errors.As(err, &unverified) {
		for _, reason := range unverified.Reasons {
			if reason.Blocking && reason.Fix != "" {
				return reason.Fix
			}
		}
	}
	return ""
}

// openAny opens the enforcer to look at jails or end them, whatever its state. Nothing loaded means no jails: nil.
func openAny() (*loader.Enforcer, error) {
	enforcer, err := loader.OpenLoaded(loader.Options{})
	if enforcer != nil {
		reconcile(enforcer)
	}
	return enforcer, err
}

func (a *app) jailListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the live jails",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			enforcer, err := openAny()
			if err != nil {
				return err
			}
			var jails []*loader.Jail
			if enforcer != nil {
				defer enforcer.Close()
				if jails, err = enforcer.Jails(); err != nil {
					return err
				}
			}
			if a.json {
				for _, j := range jails {
					if err := printJSON(os.Stdout, describe(j)); err != nil {
						return err
					}
				}
				return nil
			}
			if len(jails) == 0 {
				logrus.Info("no jail is live")
				return nil
			}
			w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "ID\tNAME\tPARENT\tMODE\tGRANTS\tDENIALS\tWORKSPACE\tCGROUP")
			for _, j := range jails {
				d := describe(j)
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", d.ID, d.Name, d.Parent, d.Mode, d.Grants, d.Denials, quoted(d.Workspace), quoted(d.Cgroup))
			}
			return w.Flush()
		},
	}
}

// jailDetails is a jail as "jail show" prints it.
type jailDetails struct {
	jailJSON
	GrantList []loader.GrantInfo `json:"grantList"`
	Denied    []string           `json:"denied"`
	Caveats   []loader.Caveat    `json:"caveats"`
}

func (a *app) jailShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show one jail: its grants, its expansions, and what its tasks hold from outside",
		Args:  exactArgs("ID"),
		RunE: func(_ *cobra.Command, args []string) error {
			return withJail(args[0], func(enforcer *loader.Enforcer, jail *loader.Jail) error {
				expansions, err := expansionsOf(enforcer, jail)
				if err != nil {
					return err
				}
				out := jailDetails{
					jailJSON: describe(jail), GrantList: append(append([]loader.GrantInfo{}, jail.Grants...), expansions...),
					Denied: append([]string{}, jail.Denied...), Caveats: []loader.Caveat{},
				}
				if !jail.Gone {
					caveats, err := enforcer.Caveats(jail)
					if err != nil {
						return err
					}
					out.Caveats = append(out.Caveats, caveats...)
				}
				if a.json {
					return printJSON(os.Stdout, out)
				}
				return printJail(os.Stdout, &out)
			})
		},
	}
}

// expansionsOf gives the expansions that hold in the kernel, with what the journal says of them.
func expansionsOf(enforcer *loader.Enforcer, jail *loader.Jail) ([]loader.GrantInfo, error) {
	held, err := enforcer.Expansions(jail)
	if err != nil || len(held) == 0 {
		return nil, err
	}
	recorded, err := engine.ReadExpansions(journal)
	if err != nil {
		return nil, err
	}
	var grants []loader.GrantInfo
	for _, x := range recorded {
		at := slices.IndexFunc(held, func(h loader.Expansion) bool { return h.ID == x.ExpansionID && !h.Expired })
		if at < 0 {
			continue
		}
		h := held[at]
		grants = append(grants, loader.GrantInfo{
			Path: x.ResourceIdentity, Device: h.Device, Inode: h.Inode, Volume: h.Volume, Generation: h.Generation,
			Rights: h.Rights.String(), Source: engine.SourceExpansion, ExpansionID: h.ID, Expires: x.ExpiresAt,
		})
	}
	return grants, nil
}

func printJail(f *os.File, d *jailDetails) error {
	w := tabwriter.NewWriter(f, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "jail\t%s %s\n", d.ID, d.Name)
	if d.Parent != "" {
		fmt.Fprintf(w, "inside\t%s\n", d.Parent)
	}
	fmt.Fprintf(w, "mode\t%s\nstate\t%s\nworkspace\t%s\ncgroup\t%s\ncreated\t%s\ndenials\t%d\n",
		d.Mode, d.State, quoted(d.Workspace), quoted(d.Cgroup), d.CreatedAt.Local().Format(time.RFC3339), d.Denials)
	fmt.Fprintln(w, "\nRIGHTS\tSOURCE\tEXPIRES\tDEVICE\tINODE\tPATH")
	for _, g := range d.GrantList {
		source, expires := string(g.Source), "never"
		if g.ExpansionID != "" {
			source += " " + g.ExpansionID
		}
		if g.Expires != nil {
			expires = g.Expires.Local().Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\n", g.Rights, source, expires, g.Device, g.Inode, quoted(g.Path))
	}
	if len(d.Denied) > 0 {
		fmt.Fprintln(w, "\nDENIED NAMES")
		for _, name := range d.Denied {
			fmt.Fprintln(w, quoted(name))
		}
	}
	if len(d.Caveats) > 0 {
		fmt.Fprintln(w, "\nHELD BY TASKS, AND NOT GRANTED\nPID\tKIND\tPATH")
		for _, c := range d.Caveats {
			fmt.Fprintf(w, "%d\t%s\t%s\n", c.PID, c.Kind, quoted(c.Path))
		}
	}
	return w.Flush()
}

// withJail does something with one live jail.
func withJail(ref string, do func(*loader.Enforcer, *loader.Jail) error) error {
	enforcer, err := openAny()
	if err != nil {
		return err
	}
	if enforcer == nil {
		return fmt.Errorf("jail %q: %w", ref, loader.ErrNoJail)
	}
	defer enforcer.Close()
	jail, err := enforcer.FindJail(ref)
	if err != nil {
		return err
	}
	return do(enforcer, jail)
}

func (a *app) jailDeleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "delete ID",
		Aliases: []string{"rm"},
		Short:   "End a jail; tasks still in its cgroup are confined no longer",
		Args:    exactArgs("ID"),
		RunE: func(_ *cobra.Command, args []string) error {
			return withJail(args[0], func(enforcer *loader.Enforcer, jail *loader.Jail) error {
				drainEvents(eventlog.New(eventlog.Dir, loader.Options{})) // with the jail goes the count of what is lost
				return enforcer.DeleteJail(jail.ID)
			})
		},
	}
}

func (a *app) unloadCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "unload",
		Short: "Detach the programs and remove their pins; refuses while jails live",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			return loader.Unload(loader.Options{}, force)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "unload even while jails live: their tasks are confined no longer")
	return cmd
}
