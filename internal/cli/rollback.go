package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

type rollbackOptions struct {
	f    *factory
	to   string
	json bool
}

func newRollback(f *factory) *cobra.Command {
	o := &rollbackOptions{f: f}
	cmd := &cobra.Command{
		Use:   "rollback ID --to TAG",
		Short: "Take a sandbox back to a snapshot that it descends from",
		Long: `Take a sandbox back, in place, to a snapshot that it descends from: the one that it
runs from, the one that it was first forked from, one that either of these stands on,
or a branch of the sandbox itself. It keeps its id; commands and evaluations that run
in it end with an error. "forkd tree" shows what there is to go back to.`,
		Args:              exactly(1, "sandbox id"),
		ValidArgsFunction: first(f.boxes()),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().StringVar(&o.to, "to", "", "`snapshot` to go back to (required)")
	completeFlag(cmd, "to", f.tags())
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *rollbackOptions) run(ctx context.Context, id string) error {
	if o.to == "" {
		return &usageError{msg: "missing --to", hint: "name the snapshot to go back to"}
	}
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	box, err := c.Rollback(ctx, id, o.to)
	if err != nil {
		return err
	}
	if o.json {
		return o.f.io.json(box)
	}
	_, err = fmt.Fprintf(o.f.io.Out, "%s runs from %s again\n", box.ID, o.to)
	return err
}
