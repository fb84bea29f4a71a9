package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

type pingOptions struct {
	f     *factory
	child string
	json  bool
}

func newPing(f *factory) *cobra.Command {
	o := &pingOptions{f: f}
	cmd := &cobra.Command{
		Use:   "ping [ID]",
		Short: "Ask a sandbox for a sign of life",
		Args:  orChild(&o.child),
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	childFlag(cmd, &o.child)
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *pingOptions) run(ctx context.Context) error {
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	id, err := pick(ctx, c, o.child)
	if err != nil {
		return err
	}
	pong, err := c.Ping(ctx, id)
	if err != nil {
		return err
	}
	if o.json {
		return o.f.io.json(pong)
	}
	_, err = fmt.Fprintf(o.f.io.Out, "%s: agent %s answered in %.2f ms, guest up for %.1f s\n",
		id, pong.AgentVersion, pong.RoundTripMs, pong.UptimeSecs)
	return err
}
