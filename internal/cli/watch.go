package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

type watchOptions struct {
	f     *factory
	child string
	opts  client.WatchOptions
	json  bool
}

func newWatch(f *factory) *cobra.Command {
	o := &watchOptions{f: f}
	cmd := &cobra.Command{
		Use:   "watch [flags] DIRECTORY",
		Short: "Tell what changes in a directory of a sandbox",
		Long: `Tell what changes in a directory of a sandbox until Ctrl-C: a line for each change, with
what has happened (create, write, remove, rename or chmod) and the name.`,
		Args: exactly(1, "directory"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	childFlag(cmd, &o.child)
	cmd.Flags().BoolVarP(&o.opts.Recursive, "recursive", "r", false, "directories below it, too")
	cmd.Flags().BoolVar(&o.json, "json", false, "print an object for each change, with a description of the file")
	return cmd
}

func (o *watchOptions) run(ctx context.Context, dir string) error {
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	id, err := pick(ctx, c, o.child)
	if err != nil {
		return err
	}
	o.opts.Entries = o.json
	w, err := c.Watch(ctx, id, dir, o.opts)
	if err != nil {
		return err
	}
	defer w.Close()
	if o.f.io.ErrTTY {
		fmt.Fprintf(o.f.io.Err, "forkd: watching %s in %s\n", dir, id)
	}
	for {
		change, err := w.Recv()
		if err != nil {
			return err
		}
		if o.json {
			err = o.f.io.json(change)
		} else {
			_, err = fmt.Fprintf(o.f.io.Out, "%s\t%s\n", change.Kind, change.Name)
		}
		if err != nil {
			return err
		}
	}
}
