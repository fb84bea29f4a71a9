package cli

import (
	"context"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

type versionOptions struct {
	f    *factory
	json bool
}

func newVersion(f *factory) *cobra.Command {
	o := &versionOptions{f: f}
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of forkd and of the daemon, if one runs",
		Args:  noArgs(),
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *versionOptions) run(ctx context.Context) error {
	c, err := o.f.existing()
	if err != nil {
		return err
	}
	remote, err := c.Version(ctx)
	if noDaemon(err) {
		remote, err = nil, nil
	}
	if err != nil {
		return err
	}
	if o.json {
		return o.f.io.json(map[string]any{"version": o.f.app.Version, "go": runtime.Version(), "daemon": remote})
	}
	fmt.Fprintf(o.f.io.Out, "forkd %s (%s %s/%s)\n", o.f.app.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if remote == nil {
		_, err = fmt.Fprintln(o.f.io.Out, "no daemon runs")
		return err
	}
	_, err = fmt.Fprintf(o.f.io.Out, "daemon %s (process %d, %s)\n", remote.Version, remote.PID, engine(remote))
	return err
}

// engine tells what a daemon executes guest code with.
func engine(v *client.Version) string {
	if v.Executor == "" {
		return "engine " + v.Engine
	}
	return fmt.Sprintf("engine %s, %s", v.Engine, v.Executor)
}
