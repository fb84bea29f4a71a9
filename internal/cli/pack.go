package cli

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

// packSuffix is how the names of packs end.
const packSuffix = ".forkd-snapshot.tar.zst"

type packOptions struct {
	f     *factory
	out   string
	force bool
	json  bool
}

func newPack(f *factory) *cobra.Command {
	o := &packOptions{f: f}
	cmd := &cobra.Command{
		Use:   "pack TAG [-o FILE | -o -]",
		Short: "Pack a snapshot into one file",
		Long: `Pack a snapshot, with all that it stands on, its image and its disks, into one file
that "forkd unpack" reads on another machine. Nothing else is needed there.`,
		Example: `  forkd pack pyagent
  forkd pack pyagent -o - | ssh elsewhere forkd unpack -`,
		Args:              exactly(1, "tag"),
		ValidArgsFunction: first(f.tags()),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().StringVarP(&o.out, "output", "o", "", "`file` to write, - for standard output (default TAG"+packSuffix+")")
	cmd.Flags().BoolVarP(&o.force, "force", "f", false, "replace the file if it exists")
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *packOptions) run(ctx context.Context, tag string) error {
	toOut := o.out == "-"
	switch {
	case toOut && o.json:
		return usagef("--json and -o - both want standard output")
	case toOut && o.f.io.OutTTY:
		return &usageError{msg: "a pack is no text for a terminal", hint: "redirect the output, or name a file with -o"}
	case o.out == "":
		o.out = tag + packSuffix
	}
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	show := newProgress(o.f.io)
	defer show.end()
	if toOut {
		_, err := packTo(ctx, c, tag, o.f.io.Out, show)
		return err
	}
	n, err := o.toFile(ctx, c, tag, show)
	show.end()
	if err != nil {
		return err
	}
	return o.print(tag, n)
}

func (o *packOptions) print(tag string, n int64) error {
	if o.json {
		return o.f.io.json(map[string]any{"tag": tag, "file": o.out, "size": n})
	}
	_, err := fmt.Fprintf(o.f.io.Out, "packed %s into %s (%s)\n", tag, o.out, size(n))
	return err
}

// toFile writes a part, so that there is never half a pack under the
// name of a whole one.
func (o *packOptions) toFile(ctx context.Context, c *client.Client, tag string, show *progress) (n int64, err error) {
	if _, err := os.Lstat(o.out); err == nil && !o.force {
		return 0, &hinted{fmt.Errorf("%s: %w", o.out, fs.ErrExist), "name another file with -o, or give --force"}
	}
	part, err := newPart(o.out)
	if err != nil {
		return 0, err
	}
	n, err = packTo(ctx, c, tag, part, show)
	if err == nil {
		err = part.Sync()
	}
	if err != nil {
		part.discard()
		return 0, err
	}
	return n, part.commit(0o600)
}

// packTo copies a pack to w and returns its size. show may be nil.
func packTo(ctx context.Context, c *client.Client, tag string, w io.Writer, show *progress) (int64, error) {
	pack, err := c.Pack(ctx, tag)
	if err != nil {
		return 0, err
	}
	defer pack.Close()
	n, err := io.Copy(w, &counted{r: pack, show: show, step: "pack", what: "packing " + tag})
	if err != nil {
		return n, fmt.Errorf("packing %s: %w", tag, err)
	}
	return n, nil
}

// counted shows how much has been read.
type counted struct {
	r     io.Reader
	show  *progress // nil: not at all
	step  string
	what  string
	n     int64
	total int64 // zero while unknown
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	switch {
	case c.show == nil:
	case c.total > 0:
		c.show.update(c.step, c.what, c.n, c.total)
	default:
		c.show.amount(c.step, c.what, c.n)
	}
	return n, err
}
