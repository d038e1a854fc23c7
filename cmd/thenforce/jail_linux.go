package main

import (
	"fmt"
	"os"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"github.com/thenforce/thenforce/internal/cgroup"
	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/loader"
)

// jailJSON is a jail as "jail list" prints it.
type jailJSON struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
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
		ID: j.ID, Name: j.Name, Cgroup: j.Cgroup, CgroupID: strconv.FormatUint(j.CgroupID, 10), Workspace: j.Workspace,
		Mode: j.Mode.String(), State: state, Grants: len(j.Grants), Denials: j.Denials, CreatedAt: j.CreatedAt,
	}
}

func (a *app) jailCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "jail",
		Short: "Make, list, show and delete jails on existing cgroups",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.jailCreateCommand(), a.jailListCommand(), a.jailShowCommand(), a.jailDeleteCommand())
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
	if unproven == nil {
		return enforcer, nil
	}
	if allowUnverified && enforcer != nil {
		logrus.Warn(unproven)
		return enforcer, nil
	}
	if enforcer != nil {
		enforcer.Close()
	}
	return nil, exit(exitUnverified, unproven)
}

// openAny opens the enforcer to look at jails or end them, whatever its state. Nothing loaded means no jails: nil.
func openAny() (*loader.Enforcer, error) {
	return loader.OpenLoaded(loader.Options{})
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
			fmt.Fprintln(w, "ID\tNAME\tMODE\tGRANTS\tDENIALS\tWORKSPACE\tCGROUP")
			for _, j := range jails {
				d := describe(j)
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%s\n", d.ID, d.Name, d.Mode, d.Grants, d.Denials, quoted(d.Workspace), quoted(d.Cgroup))
			}
			return w.Flush()
		},
	}
}

func (a *app) jailShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show one jail with its grants",
		Args:  exactArgs("ID"),
		RunE: func(_ *cobra.Command, args []string) error {
			enforcer, jail, err := findJail(args[0])
			if err != nil {
				return err
			}
			defer enforcer.Close()
			if a.json {
				grants := jail.Grants
				if grants == nil {
					grants = []loader.GrantInfo{}
				}
				return printJSON(os.Stdout, struct {
					jailJSON
					GrantList []loader.GrantInfo `json:"grantList"`
				}{describe(jail), grants})
			}
			d := describe(jail)
			w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintf(w, "jail\t%s %s\nmode\t%s\nworkspace\t%s\ncgroup\t%s\ncreated\t%s\ndenials\t%d\n",
				d.ID, d.Name, d.Mode, quoted(d.Workspace), quoted(d.Cgroup), d.CreatedAt.Local().Format(time.RFC3339), d.Denials)
			fmt.Fprintln(w, "\nRIGHTS\tSOURCE\tDEVICE\tINODE\tPATH")
			for _, g := range jail.Grants {
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", g.Rights, g.Source, g.Device, g.Inode, quoted(g.Path))
			}
			return w.Flush()
		},
	}
}

// findJail opens the enforcer and finds one jail; the caller closes it.
func findJail(ref string) (*loader.Enforcer, *loader.Jail, error) {
	enforcer, err := openAny()
	if err != nil {
		return nil, nil, err
	}
	if enforcer == nil {
		return nil, nil, fmt.Errorf("jail %q: %w", ref, loader.ErrNoJail)
	}
	jail, err := enforcer.FindJail(ref)
	if err != nil {
		enforcer.Close()
		return nil, nil, err
	}
	return enforcer, jail, nil
}

func (a *app) jailDeleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "delete ID",
		Aliases: []string{"rm"},
		Short:   "End a jail; tasks still in its cgroup are confined no longer",
		Args:    exactArgs("ID"),
		RunE: func(_ *cobra.Command, args []string) error {
			enforcer, jail, err := findJail(args[0])
			if err != nil {
				return err
			}
			defer enforcer.Close()
			return enforcer.DeleteJail(jail.ID)
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
