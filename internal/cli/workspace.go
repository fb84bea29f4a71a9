package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

func newWorkspace(f *factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "workspace",
		Aliases: []string{"ws"},
		Short:   "Named sandboxes that outlive the daemon",
		Long: `A workspace is a sandbox with a name. It can be suspended, which saves it to disk and
ends its sandbox, and resumed later, by another daemon too. When the daemon ends in an
orderly way it suspends the workspaces that run. After a crash of the host, or of the
process that it lives in, a workspace resumes from its last suspension.`,
		Example: `  forkd workspace create build --tag pyagent
  forkd workspace exec build -- git clone https://example.com/repo
  forkd workspace suspend build
  forkd workspace resume build`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return &usageError{msg: fmt.Sprintf("unknown command %q", args[0]), hint: "see `forkd workspace --help`"}
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newWorkspaceCreate(f), newWorkspaceList(f), newWorkspaceExec(f), newWorkspaceEval(f),
		newWorkspaceChange(f, "suspend", "Save a workspace to disk and end its sandbox", (*client.Client).SuspendWorkspace),
		newWorkspaceChange(f, "resume", "Let a suspended workspace run on", (*client.Client).ResumeWorkspace),
		newWorkspaceRemove(f))
	return cmd
}

func newWorkspaceCreate(f *factory) *cobra.Command {
	var tag string
	var limits limitFlags
	var json bool
	cmd := &cobra.Command{
		Use:   "create NAME [--tag TAG]",
		Short: "Make a workspace and start it",
		Args:  exactly(1, "name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.connect(cmd.Context())
			if err != nil {
				return err
			}
			var l client.ForkRequest
			limits.apply(&l)
			req := client.WorkspaceRequest{
				Name: args[0], SnapshotTag: tag, MemoryLimitMiB: l.MemoryLimitMiB, CPUs: l.CPUs, CPUWeight: l.CPUWeight, PIDsLimit: l.PIDsLimit,
				DiskLimitMiB: l.DiskLimitMiB, DiskBytesPerSec: l.DiskBytesPerSec, NetBytesPerSec: l.NetBytesPerSec, IdleTimeoutSecs: l.IdleTimeoutSecs,
			}
			made, err := c.CreateWorkspace(cmd.Context(), req)
			return f.printWorkspace(made, err, json)
		},
	}
	tagFlag(cmd, &tag)
	limits.add(cmd)
	jsonFlag(cmd, &json)
	return cmd
}

func newWorkspaceChange(f *factory, verb, short string,
	change func(c *client.Client, ctx context.Context, name string) (*client.Workspace, error)) *cobra.Command {
	var json bool
	cmd := &cobra.Command{
		Use:               verb + " NAME",
		Short:             short,
		Args:              exactly(1, "name"),
		ValidArgsFunction: first(f.workspaces()),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.connect(cmd.Context())
			if err != nil {
				return err
			}
			changed, err := change(c, cmd.Context(), args[0])
			return f.printWorkspace(changed, err, json)
		},
	}
	jsonFlag(cmd, &json)
	return cmd
}

// printWorkspace tells what has become of a workspace, or passes the error on.
func (f *factory) printWorkspace(w *client.Workspace, err error, json bool) error {
	switch {
	case err != nil:
		return err
	case json:
		return f.io.json(w)
	}
	text := fmt.Sprintf("workspace %s is %s", w.Name, w.State)
	if w.SandboxID != "" {
		text += " as " + w.SandboxID
	}
	_, err = fmt.Fprintln(f.io.Out, text)
	return err
}

func newWorkspaceList(f *factory) *cobra.Command {
	var json bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List workspaces",
		Args:    noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.connect(cmd.Context())
			if err != nil {
				return err
			}
			all, err := c.Workspaces(cmd.Context())
			if err != nil {
				return err
			}
			return listWorkspaces(f.io, all, json)
		},
	}
	jsonFlag(cmd, &json)
	return cmd
}

func listWorkspaces(io *Streams, all []client.Workspace, json bool) error {
	if json {
		return io.json(all)
	}
	if len(all) == 0 && io.OutTTY {
		fmt.Fprintln(io.Err, "no workspaces")
		return nil
	}
	rows := make([][]string, len(all))
	for i, w := range all {
		suspended := "-"
		if w.SuspendedAtUnix != 0 {
			suspended = io.when(time.Unix(w.SuspendedAtUnix, 0))
		}
		rows[i] = []string{
			w.Name, string(w.State), cmp.Or(w.SandboxID, "-"), w.SnapshotTag, io.when(time.Unix(w.CreatedAtUnix, 0)),
			suspended, cmp.Or(w.Warning, "-"),
		}
	}
	return io.table([]string{"NAME", "STATE", "SANDBOX", "SNAPSHOT", "CREATED", "SUSPENDED", "WARNING"}, rows)
}

func newWorkspaceRemove(f *factory) *cobra.Command {
	var json bool
	cmd := &cobra.Command{
		Use:               "rm NAME...",
		Aliases:           []string{"remove"},
		Short:             "Remove workspaces and what was saved of them",
		Args:              atLeast(1, "name"),
		ValidArgsFunction: f.workspaces(),
		RunE: func(cmd *cobra.Command, names []string) error {
			c, err := f.connect(cmd.Context())
			if err != nil {
				return err
			}
			removed := []string{}
			var errs []error
			for _, name := range names {
				if err := c.RemoveWorkspace(cmd.Context(), name); err != nil {
					errs = append(errs, err)
					continue
				}
				removed = append(removed, name)
			}
			if json {
				errs = append(errs, f.io.json(map[string][]string{"removed": removed}))
				return errors.Join(errs...)
			}
			for _, name := range removed {
				fmt.Fprintln(f.io.Out, name)
			}
			return errors.Join(errs...)
		},
	}
	jsonFlag(cmd, &json)
	return cmd
}

// inWorkspace returns the sandbox of a workspace that runs.
func inWorkspace(ctx context.Context, c *client.Client, name string) (string, error) {
	w, err := c.Workspace(ctx, name)
	if err != nil {
		return "", err
	}
	if w.SandboxID == "" {
		return "", &hinted{fmt.Errorf("workspace %s is %s", name, w.State), fmt.Sprintf("`forkd workspace resume %s` lets it run on", name)}
	}
	return w.SandboxID, nil
}

func newWorkspaceExec(f *factory) *cobra.Command {
	var flags commandFlags
	cmd := &cobra.Command{
		Use:               "exec [flags] NAME [--] COMMAND [ARG]...",
		Short:             "Run a command in a workspace, as \"forkd exec\" does in a sandbox",
		Args:              atLeast(2, "name and command"),
		ValidArgsFunction: first(f.workspaces()),
		RunE: func(cmd *cobra.Command, args []string) error {
			return ours(func() error {
				c, err := f.connect(cmd.Context())
				if err != nil {
					return err
				}
				id, err := inWorkspace(cmd.Context(), c, args[0])
				if err != nil {
					return err
				}
				return flags.run(cmd.Context(), f.io, c, id, command(args[1:]))
			}())
		},
	}
	flags.add(cmd)
	return cmd
}

func newWorkspaceEval(f *factory) *cobra.Command {
	o := &evalOptions{f: f}
	cmd := &cobra.Command{
		Use:               "eval [flags] NAME [--] CODE...",
		Short:             "Evaluate code in a workspace, as \"forkd eval\" does in a sandbox",
		Args:              atLeast(2, "name and code"),
		ValidArgsFunction: first(f.workspaces()),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.connect(cmd.Context())
			if err != nil {
				return err
			}
			id, err := inWorkspace(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			o.children = []string{id}
			return o.run(cmd.Context(), command(args[1:]))
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().Var(&o.timeout, "timeout", "interrupt the code after this `time`"+timeForm)
	jsonFlag(cmd, &o.json)
	return cmd
}

// command drops the "--" that may stand before a command after its sandbox.
func command(args []string) []string {
	if args[0] == "--" && len(args) > 1 {
		return args[1:]
	}
	return args
}
