package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

type pullOptions struct {
	f    *factory
	tag  string
	json bool
	hubFlags
}

func newPull(f *factory) *cobra.Command {
	o := &pullOptions{f: f}
	cmd := &cobra.Command{
		Use:   "pull REFERENCE [--tag TAG]",
		Short: "Fetch a snapshot from a web server, a hub or an OCI registry",
		Long: `Fetch a snapshot and verify every part of it. What is here already is not fetched
again, and a broken connection goes on where it stopped.

` + references,
		Args: exactly(1, "reference"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().StringVarP(&o.tag, "tag", "t", "", "`name` of the snapshot; as it was packed by default")
	o.hubFlags.add(cmd)
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *pullOptions) run(ctx context.Context, reference string) error {
	if isFile(reference) {
		return &usageError{msg: reference + " is a file", hint: fmt.Sprintf("`forkd unpack %s` reads it", reference)}
	}
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	show := newProgress(o.f.io)
	start := time.Now()
	req := client.PullRequest{Reference: reference, Tag: o.tag, HubURL: o.url, HubToken: o.token()}
	info, err := c.Pull(ctx, req, show.follow)
	show.end()
	if err != nil {
		return err
	}
	return printMade(o.f.io, info, time.Since(start), o.json)
}
