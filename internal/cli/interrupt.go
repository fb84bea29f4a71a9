package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

type interruptOptions struct {
	f     *factory
	child string
	json  bool
}

func newInterrupt(f *factory) *cobra.Command {
	o := &interruptOptions{f: f}
	cmd := &cobra.Command{
		Use:   "interrupt [ID]",
		Short: "Interrupt the evaluation that runs in a sandbox",
		Long: `Interrupt the evaluation that runs in a sandbox, as Ctrl-C does to Python: it ends with
KeyboardInterrupt, and the runtime keeps its state. A child of a sandbox that was
evaluating goes on with that evaluation, and whatever it is asked to evaluate waits
until it ends. Where none runs, nothing happens.`,
		Args:              orChild(&o.child),
		ValidArgsFunction: first(f.boxes()),
		RunE:              func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	childFlag(cmd, &o.child)
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *interruptOptions) run(ctx context.Context) error {
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	id, err := pick(ctx, c, o.child)
	if err != nil {
		return err
	}
	if err := c.Interrupt(ctx, id); err != nil {
		return err
	}
	if o.json {
		return o.f.io.json(map[string]string{"interrupted": id})
	}
	_, err = fmt.Fprintln(o.f.io.Out, id)
	return err
}
