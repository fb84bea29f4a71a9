package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

type snapshotDiffOptions struct {
	f     *factory
	from  string
	tag   string
	execs []string
	evals []string
	json  bool
}

func newSnapshotDiff(f *factory) *cobra.Command {
	o := &snapshotDiffOptions{f: f}
	cmd := &cobra.Command{
		Use:     "snapshot-diff --from TAG --tag TAG {--exec COMMAND | --eval CODE}...",
		Aliases: []string{"derive"},
		Short:   "Derive a snapshot from another one by some work in it",
		Long: `Fork a child of a snapshot, run commands and evaluations in it and keep what has
changed as a new snapshot that stands on the first. The commands run first, in their
order, then the evaluations. If one of them fails nothing is kept.`,
		Example: `  forkd snapshot-diff --from pyagent --tag tools --exec 'mkdir -p /opt/app && echo v1 > /opt/app/version' --eval 'import json'
  forkd snapshot-diff --from pyagent --tag loaded --eval 'data = numpy.arange(1000)'`,
		Args: noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.from, "from", "", "`snapshot` to derive from (required)")
	flags.StringVarP(&o.tag, "tag", "t", "", "`name` of the new snapshot (required)")
	flags.StringArrayVar(&o.execs, "exec", nil, "shell `command` to run in the child")
	flags.StringArrayVar(&o.evals, "eval", nil, "`code` to evaluate in the child's warm runtime")
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *snapshotDiffOptions) run(ctx context.Context) error {
	switch {
	case o.from == "":
		return &usageError{msg: "missing --from", hint: "name the snapshot to derive from"}
	case o.tag == "":
		return &usageError{msg: "missing --tag", hint: "name the new snapshot"}
	case len(o.execs)+len(o.evals) == 0:
		return &usageError{msg: "nothing to do", hint: "give at least one --exec COMMAND or --eval CODE"}
	}
	req := client.DeriveRequest{Tag: o.tag, Evals: o.evals}
	for _, line := range o.execs {
		req.Commands = append(req.Commands, []string{"/bin/sh", "-c", line})
	}
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	show := newProgress(o.f.io)
	start := time.Now()
	info, err := c.DeriveSnapshot(ctx, o.from, req, show.follow)
	show.end()
	if err != nil {
		return err
	}
	return printMade(o.f.io, info, time.Since(start), o.json)
}
