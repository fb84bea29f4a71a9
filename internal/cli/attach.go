package cli

import (
	"context"

	"github.com/spf13/cobra"
)

type attachOptions struct {
	f       *factory
	child   string
	noInput bool
	json    bool
}

func newAttach(f *factory) *cobra.Command {
	o := &attachOptions{f: f}
	cmd := &cobra.Command{
		Use:        "attach [flags] {PID | NAME}",
		SuggestFor: []string{"logs"},
		Short:      "Listen to a process that lives on its own",
		Long: `Listen to a process of a sandbox that "exec --detach" or "exec --tty" has started, from
now on and until it ends. The exit status is its own. Of one that has a terminal, this
one becomes its screen and keyboard, if it is one; Ctrl-] leaves it. One that reads
its standard input gets yours. Leaving, or being ended, does not end the process.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				if err := noSandbox(cmd, o.child, args[0], "process", "{PID | NAME}"); err != nil {
					return err
				}
			}
			return exactly(1, "process")(cmd, args)
		},
		ValidArgsFunction: first(f.processes(&o.child)),
		RunE:              func(cmd *cobra.Command, args []string) error { return ours(o.run(cmd.Context(), args[0])) },
	}
	childFlag(cmd, &o.child)
	cmd.Flags().BoolVar(&o.noInput, "no-stdin", false, "only listen")
	cmd.Flags().BoolVar(&o.json, "json", false, "print the outcome and the output as JSON at the end")
	return cmd
}

func (o *attachOptions) run(ctx context.Context, name string) error {
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	id, err := pick(ctx, c, o.child)
	if err != nil {
		return err
	}
	a, err := c.AttachProcess(ctx, id, processRef(name))
	if err != nil {
		return err
	}
	defer a.Close()
	s := &session{io: o.f.io, client: c, id: id, process: a}
	if o.json {
		return s.collect()
	}
	return s.run(ctx, !o.noInput)
}
