package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

type pauseOptions struct {
	f    *factory
	json bool
}

func newPause(f *factory) *cobra.Command {
	o := &pauseOptions{f: f}
	cmd := &cobra.Command{
		Use:   "pause ID...",
		Short: "Save sandboxes to disk and end their use of memory",
		Long: `Save sandboxes to disk, with their memory and their processes. A paused sandbox uses
no memory, outlives the daemon and has no lifetime; "forkd resume" has it go on where
it stood, under the same id. Meanwhile it is listed, and can be killed, forked from and
branched. Who waits for something in it then, such as the command of an exec, is told
by an error; that goes on after the resume, unheard.`,
		Args:              atLeast(1, "sandbox id"),
		ValidArgsFunction: f.boxes(),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *pauseOptions) run(ctx context.Context, ids []string) error {
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	return changeEach(o.f.io, ids, o.json, func(id string) (*client.SandboxInfo, error) { return c.Pause(ctx, id) })
}

// changeEach does something to sandboxes, several at a time, and prints those for
// which that went well.
func changeEach(io *Streams, ids []string, asJSON bool, do func(id string) (*client.SandboxInfo, error)) error {
	infos, errs := make([]*client.SandboxInfo, len(ids)), make([]error, len(ids))
	each(len(ids), func(i int) { infos[i], errs[i] = do(ids[i]) })
	done := []client.SandboxInfo{}
	for _, info := range infos {
		if info != nil {
			done = append(done, *info)
		}
	}
	if asJSON {
		errs = append(errs, io.json(done))
	} else {
		for _, info := range done {
			fmt.Fprintln(io.Out, info.ID)
		}
	}
	return errors.Join(errs...)
}
