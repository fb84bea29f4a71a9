package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

type signalOptions struct {
	f     *factory
	child string
	json  bool
}

func newSignal(f *factory) *cobra.Command {
	o := &signalOptions{f: f}
	cmd := &cobra.Command{
		Use:   "signal [flags] {PID | NAME} [SIGNAL]",
		Short: "Send a signal to a process that lives on its own",
		Long: `Send a signal, SIGTERM if none is named, to a process of a sandbox that "exec --detach" or
"exec --tty" has started and to its process group; SIGKILL to all that it has started.`,
		Example: `  forkd signal server
  forkd signal 123 KILL`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				if err := noSandbox(cmd, o.child, args[0], "process", "{PID | NAME} [SIGNAL]"); err != nil {
					return err
				}
			}
			if len(args) == 1 {
				return nil
			}
			return exactly(2, "process")(cmd, args)
		},
		ValidArgsFunction: first(f.processes(&o.child)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), args[0], append(args[1:], "SIGTERM")[0])
		},
	}
	childFlag(cmd, &o.child)
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *signalOptions) run(ctx context.Context, process, signal string) error {
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	id, err := pick(ctx, c, o.child)
	if err != nil {
		return err
	}
	ref := processRef(process)
	if err := c.SignalProcess(ctx, id, ref, signal); err != nil {
		return err
	}
	if o.json {
		return o.f.io.json(map[string]string{"sandbox": id, "process": process, "signal": signal})
	}
	_, err = fmt.Fprintln(o.f.io.Out, process)
	return err
}
