package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
)

type snapshotOptions struct {
	f         *factory
	tag       string
	memory    int
	vcpus     int
	disk      int
	packages  []string
	mirror    string
	runtime   string
	modules   []string
	languages []string
	warmUp    []string
	setup     []string
	json      bool
	branchFlags
}

func newSnapshot(f *factory) *cobra.Command {
	o := &snapshotOptions{f: f}
	cmd := &cobra.Command{
		Use:        "snapshot {--tag TAG [flags] | --from-sandbox ID [--mode MODE]}",
		SuggestFor: []string{"branch", "commit", "build"},
		Short:      "Make a snapshot of a new machine, or of a running sandbox",
		Long: `Boot a machine, warm its runtime and freeze it as a snapshot. Or, with
--from-sandbox, branch a running sandbox, which goes on running.

A branch holds the sandbox as it is: processes, open files, the state of the
interpreter, file data, background jobs. It can be forked from at once, while its
bytes are still on their way to the disk. Its mode says what is stored:

  live  what has changed since the sandbox's snapshot or its last branch
  diff  the same under the name that it has elsewhere
  full  everything, so that it stands on no other snapshot`,
		Example: `  forkd snapshot --tag science --modules numpy,json --packages jq
  forkd snapshot --tag shell --runtime none --setup 'echo hello > /etc/motd'
  forkd snapshot --from-sandbox sb0123456789ab --tag before-upgrade`,
		Args: noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			if o.from != "" {
				return o.branch(cmd.Context())
			}
			return o.run(cmd.Context(), cmd.Flags().Changed("modules"))
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.tag, "tag", "t", "", "`name` of the snapshot; made up for a branch if left out")
	flags.IntVar(&o.memory, "memory-mib", 0, "RAM in `MiB` (default 512)")
	flags.IntVar(&o.vcpus, "vcpus", 0, "`number` of virtual CPUs, 1 to 8, or 16 on the engine kvm (default 1)")
	flags.IntVar(&o.disk, "disk-mib", 0, "size of the writable disk in `MiB` (default 4096)")
	flags.StringSliceVar(&o.packages, "packages", nil, "Debian `packages` to add")
	flags.StringVar(&o.mirror, "mirror", os.Getenv("FORKD_DEBIAN_MIRROR"), "`URL` of a Debian mirror (FORKD_DEBIAN_MIRROR)")
	flags.StringVar(&o.runtime, "runtime", "", "`interpreter` to keep warm: python or none (default python)")
	flags.StringSliceVar(&o.modules, "modules", nil, "`modules` that the runtime imports (default numpy,numpy.random)")
	flags.StringSliceVar(&o.languages, "languages", nil, "`languages` to keep warm besides: javascript (with --packages nodejs), bash")
	flags.StringArrayVar(&o.warmUp, "warm-up", nil, "`code` that the runtime evaluates once")
	flags.StringArrayVar(&o.setup, "setup", nil, "shell `command` to run before the runtime starts")
	o.branchFlags.add(cmd)
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *snapshotOptions) run(ctx context.Context, modules bool) error {
	if o.tag == "" {
		return &usageError{msg: "missing --tag", hint: "name the new snapshot with --tag, or branch a sandbox with --from-sandbox"}
	}
	req := client.SnapshotRequest{
		Tag: o.tag, MemoryMiB: orNil(o.memory), VCPUs: orNil(o.vcpus), DiskMiB: orNil(o.disk),
		Packages: o.packages, Mirror: o.mirror, Runtime: api.SnapshotRequestRuntime(o.runtime), WarmUp: o.warmUp,
	}
	if modules {
		req.Modules = &o.modules
	}
	for _, l := range o.languages {
		req.Languages = append(req.Languages, api.SnapshotRequestLanguages(l))
	}
	for _, line := range o.setup {
		req.Setup = append(req.Setup, []string{"/bin/sh", "-c", line})
	}
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	show := newProgress(o.f.io)
	start := time.Now()
	info, err := createSnapshot(ctx, show, c, req)
	show.end()
	if err != nil {
		return missingModule(err)
	}
	return printMade(o.f.io, info, time.Since(start), o.json)
}

// missingModule adds what to do if the runtime could not import a module.
func missingModule(err error) error {
	var remote *client.Error
	if !errors.As(err, &remote) || !strings.Contains(remote.Message, "No module named") {
		return err
	}
	return &hinted{err, "the module is not in the image; name the Debian package that has it with --packages, for example python3-yaml for yaml"}
}

// printMade tells of a snapshot that was made.
func printMade(io *Streams, info *client.SnapshotInfo, took time.Duration, json bool) error {
	if json {
		return io.json(info)
	}
	_, err := fmt.Fprintf(io.Out, "snapshot %s is ready (%s)\n", info.Tag, precise(millis(took)))
	return err
}

// createSnapshot makes a snapshot and shows how it goes on.
func createSnapshot(ctx context.Context, show *progress, c *client.Client, req client.SnapshotRequest) (*client.SnapshotInfo, error) {
	return c.CreateSnapshot(ctx, req, show.follow)
}
