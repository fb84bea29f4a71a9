package cli

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
)

type killOptions struct {
	f    *factory
	all  bool
	tag  string
	json bool
}

func newKill(f *factory) *cobra.Command {
	o := &killOptions{f: f}
	cmd := &cobra.Command{
		Use:        "kill {ID... | --all | --tag TAG}",
		SuggestFor: []string{"rm", "remove", "delete"},
		Aliases:    []string{"destroy"},
		Short:      "End sandboxes",
		Long: `End sandboxes, running and paused ones, and print the ids of those that were ended. A workspace that runs is
not ended: what it has done since it was last suspended would be lost. --all and --tag
pass it over and say so; given by its id it is an error. "forkd workspace suspend"
ends its sandbox and keeps its state, "forkd workspace rm" gives it up.`,

		ValidArgsFunction: f.boxes(),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	cmd.Flags().BoolVar(&o.all, "all", false, "end all sandboxes but workspaces")
	cmd.Flags().StringVarP(&o.tag, "tag", "t", "", "end the sandboxes of this `snapshot`")
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *killOptions) run(ctx context.Context, ids []string) error {
	if err := o.check(ids); err != nil {
		return err
	}
	c, err := o.f.withSandboxes(ctx)
	if err != nil {
		return err
	}
	found := len(ids) == 0
	if found {
		if ids, err = o.find(ctx, c); err != nil {
			return err
		}
	}
	killed, err := killEach(ctx, c, ids, found)
	if o.json {
		return errors.Join(o.f.io.json(map[string][]string{"killed": killed}), err)
	}
	for _, id := range killed {
		fmt.Fprintln(o.f.io.Out, id)
	}
	return err
}

// check sees that the sandboxes are named in exactly one way.
func (o *killOptions) check(ids []string) error {
	ways := 0
	for _, chosen := range []bool{o.all, o.tag != "", len(ids) > 0} {
		if chosen {
			ways++
		}
	}
	switch ways {
	case 0:
		return &usageError{msg: "say which sandboxes to end", hint: "give ids, or --all, or --tag TAG"}
	case 1:
		return nil
	}
	return &usageError{msg: "ids, --all and --tag exclude each other", hint: "give one of them"}
}

// find lists the sandboxes to end, and tells of the workspaces that it passes over.
// Without a daemon there are none.
func (o *killOptions) find(ctx context.Context, c *client.Client) ([]string, error) {
	boxes, err := c.Sandboxes(ctx)
	if o.f.without(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, box := range boxes {
		switch {
		case !o.all && box.SnapshotTag != o.tag:
		case box.Workspace != "" && box.State == api.SandboxInfoStateRunning:
			fmt.Fprintf(o.f.io.Err, "forkd: workspace %s (%s) runs on; `forkd workspace suspend %s` ends it\n", box.Workspace, box.ID, box.Workspace)
		default:
			ids = append(ids, box.ID)
		}
	}
	return ids, nil
}

// killEach ends sandboxes, several at a time, and returns those that it ended,
// in their order, and what kept it from ending the others. found tells that the
// ids come from a list and not from the user: that one of them has ended since
// then is as good as ending it.
func killEach(ctx context.Context, c *client.Client, ids []string, found bool) (killed []string, err error) {
	errs := make([]error, len(ids))
	each(len(ids), func(i int) { errs[i] = c.Kill(ctx, ids[i]) })
	killed = []string{}
	for i, id := range ids {
		switch {
		case errs[i] == nil:
			killed = append(killed, id)
		case found && client.IsCode(errs[i], api.ErrorCodeNotFound):
			errs[i] = nil
		}
	}
	return killed, errors.Join(errs...)
}

// killAll ends sandboxes that this process made, though ctx may have ended. One
// that is gone already is fine.
func killAll(ctx context.Context, c *client.Client, ids []string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	errs := make([]error, len(ids))
	each(len(ids), func(i int) {
		if err := c.Kill(ctx, ids[i]); !client.IsCode(err, api.ErrorCodeNotFound) {
			errs[i] = err
		}
	})
	return errors.Join(errs...)
}

// fanOut is how many requests are under way at once. It is more than the CPUs,
// as a request waits for the guest.
const fanOut = 16

// each calls do for every i below n.
func each(n int, do func(i int)) {
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(n, fanOut) {
		wg.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}
