package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

type rmiOptions struct {
	f *factory
	client.RemoveOptions
	json bool
}

func newRmi(f *factory) *cobra.Command {
	o := &rmiOptions{f: f}
	cmd := &cobra.Command{
		Use:   "rmi TAG...",
		Short: "Remove snapshots",
		Long:  "Remove snapshots and print the tags of those that were removed.",
		Args:  atLeast(1, "tag"),
		RunE:  func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	cmd.Flags().BoolVarP(&o.Force, "force", "f", false, "end the sandboxes that run from it first")
	cmd.Flags().BoolVar(&o.Cascade, "cascade", false, "remove the snapshots that were derived from it too")
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *rmiOptions) run(ctx context.Context, tags []string) error {
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	removed := []string{}
	var errs []error
	for _, tag := range tags {
		if err := c.RemoveSnapshot(ctx, tag, o.RemoveOptions); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, tag)
	}
	if o.json {
		errs = append(errs, o.f.io.json(map[string][]string{"removed": removed}))
		return errors.Join(errs...)
	}
	for _, tag := range removed {
		fmt.Fprintln(o.f.io.Out, tag)
	}
	return errors.Join(errs...)
}
