package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

type runOptions struct {
	f      *factory
	tag    string
	image  string
	limits limitFlags
	commandFlags
}

func newRun(f *factory) *cobra.Command {
	o := &runOptions{f: f}
	cmd := &cobra.Command{
		Use:   "run [flags] [--] COMMAND [ARG]...",
		Short: "Run a command in a sandbox of its own, then end it",
		Long: `Fork a sandbox, run a command in it and end it. The exit status is the command's
own; see "forkd help exit-codes".`,
		Example: `  forkd run -- python3 -c 'import numpy; print(numpy.zeros(5))'`,
		Args:    atLeast(1, "command"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("tag") && cmd.Flags().Changed("image") {
				return usagef("--tag and --image name the same thing; give one")
			}
			return ours(o.run(cmd.Context(), args))
		},
	}
	tagFlag(cmd, &o.tag)
	cmd.Flags().StringVar(&o.image, "image", "", "another name for --tag: this build runs `snapshots` only")
	o.limits.add(cmd)
	o.commandFlags.add(cmd)
	return cmd
}

var tagPattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func (o *runOptions) run(ctx context.Context, args []string) error {
	if o.image != "" && !tagPattern.MatchString(o.image) {
		return &hinted{fmt.Errorf("--image %s: this build cannot run OCI images", o.image), "give the tag of a snapshot; `forkd images` lists them"}
	}
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	req := client.ForkRequest{Tag: cmp.Or(o.image, o.tag)}
	o.limits.apply(&req)
	boxes, err := fork(ctx, c, req)
	if err != nil {
		return err
	}
	// The sandbox ends also when we are interrupted. Failing at that must not
	// take the place of the command's status.
	defer func() {
		if err := killAll(ctx, c, ids(boxes)); err != nil {
			fmt.Fprintf(o.f.io.Err, "forkd: ending the sandbox: %v\n", err)
		}
	}()
	return o.commandFlags.run(ctx, o.f.io, c, boxes[0].ID, args)
}

// cleanTime bounds undoing what was begun.
const cleanTime = 30 * time.Second

// fork makes all children or none.
func fork(ctx context.Context, c *client.Client, req client.ForkRequest) ([]client.SandboxInfo, error) {
	boxes, failed, err := c.Fork(ctx, req)
	if err != nil {
		return nil, err
	}
	if len(failed) == 0 {
		return boxes, nil
	}
	err = &hinted{fmt.Errorf("%d of %d children could not be started: %s", len(failed), len(boxes)+len(failed), failed[0].Error), failed[0].Hint}
	return nil, errors.Join(err, killAll(ctx, c, ids(boxes)))
}

func ids(boxes []client.SandboxInfo) []string {
	out := make([]string, len(boxes))
	for i := range boxes {
		out[i] = boxes[i].ID
	}
	return out
}

func orNil[T int | int64 | float64](n T) *T {
	if n == 0 {
		return nil
	}
	return &n
}
