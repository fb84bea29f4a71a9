package cli

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

type unpackOptions struct {
	f    *factory
	tag  string
	json bool
}

func newUnpack(f *factory) *cobra.Command {
	o := &unpackOptions{f: f}
	cmd := &cobra.Command{
		Use:   "unpack {FILE | -} [--tag TAG]",
		Short: "Make a snapshot of a pack",
		Long: `Make a snapshot of a file that "forkd pack" has written, or of standard input. Every
part is verified before it counts; of a pack that is not in order nothing is kept.`,
		Args: exactly(1, "file"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().StringVarP(&o.tag, "tag", "t", "", "`name` of the snapshot; as it was packed by default")
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *unpackOptions) run(ctx context.Context, file string) error {
	in, total := o.f.io.In, int64(0)
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		if info, err := f.Stat(); err == nil {
			total = info.Size()
		}
		in = f
	}
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	show := newProgress(o.f.io)
	start := time.Now()
	info, err := unpackFrom(ctx, c, in, total, o.tag, show)
	show.end()
	if err != nil {
		return err
	}
	return printMade(o.f.io, info, time.Since(start), o.json)
}

// unpackFrom shows how much of a pack has been sent.
func unpackFrom(ctx context.Context, c *client.Client, r io.Reader, total int64, tag string, show *progress) (*client.SnapshotInfo, error) {
	return c.Unpack(ctx, &counted{r: r, show: show, step: "unpack", what: "unpacking", total: total}, tag)
}
