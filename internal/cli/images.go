package cli

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

type imagesOptions struct {
	f     *factory
	quiet bool
	json  bool
}

func newImages(f *factory) *cobra.Command {
	o := &imagesOptions{f: f}
	cmd := &cobra.Command{
		Use:     "images",
		Aliases: []string{"snapshots"},
		Short:   "List snapshots",
		Args:    noArgs(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	cmd.Flags().BoolVarP(&o.quiet, "quiet", "q", false, "print tags only")
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *imagesOptions) run(ctx context.Context) error {
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	all, err := c.Snapshots(ctx)
	if err != nil {
		return err
	}
	if o.json {
		return o.f.io.json(all)
	}
	if len(all) == 0 && o.f.io.OutTTY {
		fmt.Fprintln(o.f.io.Err, "no snapshots")
		return nil
	}
	if o.quiet {
		for _, s := range all {
			if _, err := fmt.Fprintln(o.f.io.Out, s.Tag); err != nil {
				return err
			}
		}
		return nil
	}
	rows := make([][]string, len(all))
	for i, s := range all {
		bootable := "yes"
		if !s.Bootable {
			bootable = "no"
		}
		rows[i] = []string{s.Tag, string(s.Status), bootable, o.f.io.when(time.Unix(s.CreatedAtUnix, 0)), cmp.Or(s.Warning, "-")}
	}
	return o.f.io.table([]string{"TAG", "STATUS", "BOOTABLE", "CREATED", "WARNING"}, rows)
}
