package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
)

type verifyOptions struct {
	f    *factory
	json bool
}

func newVerify(f *factory) *cobra.Command {
	o := &verifyOptions{f: f}
	cmd := &cobra.Command{
		Use:   "verify [TAG...]",
		Short: "Compare every byte of snapshots with their hashes",
		Long: `Read every file of the snapshots that are named, or of all, with all that they stand
on, and compare it with its hash. Bytes are checked when they enter the store; this
finds what the disk has done to them since. The exit status is 1 if one is damaged.`,
		ValidArgsFunction: f.tags(),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	jsonFlag(cmd, &o.json)
	return cmd
}

// verified is what is told of one snapshot.
type verified struct {
	Tag   string `json:"tag"`
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

func (o *verifyOptions) run(ctx context.Context, tags []string) error {
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	if len(tags) == 0 {
		if tags, err = readyTags(ctx, c); err != nil {
			return err
		}
	}
	show := newProgress(o.f.io)
	results := []verified{}
	var errs []error
	for _, tag := range tags {
		_, err := c.VerifySnapshot(ctx, tag, func(p client.Progress) { show.update(tag, "verifying "+tag, p.Done, p.Total) })
		show.end()
		if err != nil && ctx.Err() != nil {
			return err
		}
		r := verified{Tag: tag, OK: err == nil}
		if err != nil {
			r.Error = err.Error()
			errs = append(errs, err)
		}
		results = append(results, r)
	}
	return errors.Join(append(errs, o.print(results))...)
}

// readyTags lists the snapshots that are not being written right now.
func readyTags(ctx context.Context, c *client.Client) (tags []string, err error) {
	all, err := c.Snapshots(ctx)
	for _, s := range all {
		if s.Status != api.SnapshotStatusWriting {
			tags = append(tags, s.Tag)
		}
	}
	return tags, err
}

func (o *verifyOptions) print(results []verified) error {
	if o.json {
		return o.f.io.json(results)
	}
	for _, r := range results {
		if !r.OK {
			continue // told as an error
		}
		if _, err := fmt.Fprintf(o.f.io.Out, "%s\tok\n", r.Tag); err != nil {
			return err
		}
	}
	return nil
}
