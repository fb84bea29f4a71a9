package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/api"
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
		Long: `Remove snapshots and print the tags of those that were removed. A snapshot that
sandboxes run from or that other snapshots stand on stays, and the error names them,
unless --cascade or --force says what to do about them. What a workspace resumes
from stays in any case, and what a paused sandbox does, also once it is resumed;
"forkd workspace rm" and "forkd kill" remove it with those.

In whatever order tags are given, those that stand on others go first. If some cannot
be removed the others are removed all the same, and the exit status is 1.`,
		Args:              atLeast(1, "tag"),
		ValidArgsFunction: f.tags(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := exclusive(cmd, "force", "cascade"); err != nil {
				return err
			}
			return o.run(cmd.Context(), args)
		},
	}
	cmd.Flags().BoolVarP(&o.Force, "force", "f", false, "end its sandboxes; snapshots that stand on it stay and keep what they need of it")
	cmd.Flags().BoolVar(&o.Cascade, "cascade", false, "remove the snapshots that stand on it too, and end their sandboxes")
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *rmiOptions) run(ctx context.Context, tags []string) error {
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	removed, err := removeAll(ctx, c, tags, o.RemoveOptions)
	if o.json {
		return errors.Join(err, o.f.io.json(map[string][]string{"removed": removed}))
	}
	for _, tag := range removed {
		fmt.Fprintln(o.f.io.Out, tag)
	}
	return err
}

// removeAll removes snapshots and returns what was removed. It tries those that
// are in use again for as long as others go: these may have been what used them.
func removeAll(ctx context.Context, c *client.Client, tags []string, opts client.RemoveOptions) (removed []string, err error) {
	removed = []string{}
	var failed []error // for another reason than being in use
	for {
		var inUse []string
		var refused []error
		for _, tag := range tags {
			if slices.Contains(removed, tag) {
				continue // with one that it stood on
			}
			gone, err := c.RemoveSnapshot(ctx, tag, opts)
			removed = append(removed, gone...)
			switch {
			case client.IsCode(err, api.ErrorCodeInUse):
				inUse, refused = append(inUse, tag), append(refused, err)
			case err != nil:
				failed = append(failed, err)
			}
		}
		if len(inUse) == 0 || len(inUse) == len(tags) {
			return removed, errors.Join(append(failed, refused...)...)
		}
		tags = inUse
	}
}
