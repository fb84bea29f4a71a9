package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
	"github.com/forkd-dev/forkd/internal/daemon/launch"
)

type stopOptions struct {
	f    *factory
	json bool
}

func newStop(f *factory) *cobra.Command {
	o := &stopOptions{f: f}
	cmd := &cobra.Command{
		Use:   "stop",
		Short: "End your own daemon and all its sandboxes",
		Long: `End the daemon that has its home in FORKD_HOME, whoever started it, and wait until it
is gone. Its sandboxes end with it; its snapshots stay. FORKD_URL plays no part.`,
		Args: noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *stopOptions) run(ctx context.Context) error {
	if o.f.url != "" {
		return &usageError{msg: "stop ends your own daemon only", hint: "leave --url out, and set FORKD_HOME to name another home"}
	}
	home, err := client.Home()
	if err != nil {
		return err
	}
	pid, err := launch.Stop(ctx, home)
	if err != nil {
		return err
	}
	if o.json {
		return o.f.io.json(map[string]*int{"stopped": orNil(pid)})
	}
	if pid == 0 {
		_, err = fmt.Fprintln(o.f.io.Out, "no daemon runs")
		return err
	}
	_, err = fmt.Fprintf(o.f.io.Out, "stopped the daemon (process %d)\n", pid)
	return err
}
