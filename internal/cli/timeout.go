package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
)

type timeoutOptions struct {
	f      *factory
	extend bool
	json   bool
}

func newTimeout(f *factory) *cobra.Command {
	o := &timeoutOptions{f: f}
	cmd := &cobra.Command{
		Use:   "timeout ID {TIME | none}",
		Short: "Change how long a sandbox still lives",
		Long: `Change how long a sandbox lives from now on, to a time such as 90s or 1h, or to no
limit. What happens at the end was said when it was forked (--on-timeout). Of a paused
sandbox it is the lifetime that its next resume gives it.`,
		Args:              exactly(2, "sandbox id or time"),
		ValidArgsFunction: first(f.boxes()),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0], args[1]) },
	}
	cmd.Flags().BoolVar(&o.extend, "extend", false, "never end it earlier than it would have ended")
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *timeoutOptions) run(ctx context.Context, id, text string) error {
	var d duration
	if text != "none" {
		if err := d.Set(text); err != nil {
			return &usageError{msg: fmt.Sprintf("malformed time %q", text), hint: err.Error() + ", or none"}
		}
	} else if o.extend {
		return &usageError{msg: "--extend needs a time", hint: "leave it out for no limit"}
	}
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	change := c.SetLifetime
	if o.extend {
		change = c.ExtendLifetime
	}
	box, err := change(ctx, id, time.Duration(d))
	if client.IsCode(err, api.ErrorCodeInvalidArgument) {
		return &hinted{err, "none is for no limit"} // which the API calls null
	}
	if err != nil {
		return err
	}
	if o.json {
		return o.f.io.json(box)
	}
	_, err = fmt.Fprintf(o.f.io.Out, "%s %s\n", box.ID, ends(o.f.io, box))
	return err
}

func ends(io *Streams, box *client.SandboxInfo) string {
	switch {
	case box.State == "paused":
		return "is paused"
	case box.ExpiresAt == nil:
		return "has no end"
	case box.OnTimeout == client.PauseOnTimeout:
		return "is paused " + io.until(box.ExpiresAt)
	}
	return "ends " + io.until(box.ExpiresAt)
}
