package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
)

type treeOptions struct {
	f    *factory
	json bool
}

func newTree(f *factory) *cobra.Command {
	o := &treeOptions{f: f}
	cmd := &cobra.Command{
		Use:   "tree",
		Short: "Show the family of snapshots and sandboxes",
		Long: `Show snapshots and sandboxes under the snapshot that each of them comes from, with
their age, a sandbox's private memory, and the disk that a snapshot alone takes. A
sandbox that was forked from another one stands under that. FROM is the sandbox that a
snapshot is a branch of, or that a sandbox was forked from.

In a pipe there is a line for each: name, kind, parent, source, workspace, time of
creation, state, private KiB, disk KiB.`,
		Args: noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *treeOptions) run(ctx context.Context) error {
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	nodes, err := c.Tree(ctx)
	if err != nil {
		return err
	}
	switch {
	case o.json:
		return o.f.io.json(nodes)
	case !o.f.io.OutTTY:
		return o.f.io.table(nil, treeLines(o.f.io, nodes))
	case len(nodes) == 0:
		fmt.Fprintln(o.f.io.Err, "no snapshots")
		return nil
	}
	rows := drawTree(o.f.io, nodes)
	return o.f.io.table([]string{"NAME", "AGE", "STATE", "PRIVATE", "DISK", "FROM"}, rows)
}

// treeLines are the nodes for programs.
func treeLines(io *Streams, nodes []client.TreeNode) (rows [][]string) {
	for _, n := range nodes {
		rows = append(rows, []string{
			n.Name, string(n.Kind), cmp.Or(n.Parent, "-"), cmp.Or(n.Source, "-"), cmp.Or(n.Workspace, "-"),
			io.when(time.Unix(n.CreatedAtUnix, 0)), n.State,
			strconv.FormatInt(n.PrivateKiB, 10), strconv.FormatInt(n.DiskKiB, 10),
		})
	}
	return rows
}

// drawTree are the nodes for people, each under what it comes from.
func drawTree(io *Streams, nodes []client.TreeNode) (rows [][]string) {
	under := byParent(nodes)
	var draw func(parent, indent string)
	draw = func(parent, indent string) {
		children := under[parent]
		delete(under, parent) // should a name come twice, the first has the children
		for i, n := range children {
			branch, rest := "├─ ", "│  "
			switch {
			case parent == "":
				branch, rest = "", ""
			case i == len(children)-1:
				branch, rest = "└─ ", "   "
			}
			rows = append(rows, treeRow(io, indent+branch, n))
			draw(treeKey(n.Kind, n.Name), indent+rest)
		}
	}
	draw("", "")
	return rows
}

func treeKey(kind api.TreeNodeKind, name string) string { return string(kind) + " " + name }

// byParent sorts nodes by the key of what they are drawn under, which is empty
// for roots. That is their snapshot; a sandbox that was forked from another one,
// without a snapshot in between, stands under that. What would close a circle, as
// when a sandbox has been rolled back to its own branch, is left out of account, so
// that every node hangs from a root.
func byParent(nodes []client.TreeNode) map[string][]client.TreeNode {
	known := map[string]client.TreeNode{}
	for _, n := range nodes {
		known[treeKey(n.Kind, n.Name)] = n
	}
	parents := map[string]string{} // so far, without circles
	above := func(key, from string) bool {
		for ; from != "" && from != key; from = parents[from] {
		}
		return from == key
	}
	under := map[string][]client.TreeNode{}
	for _, n := range nodes {
		key := treeKey(n.Kind, n.Name)
		parent := treeKey(api.TreeNodeKindSnapshot, n.Parent)
		if _, there := known[parent]; !there || above(key, parent) {
			parent = ""
		}
		source := treeKey(api.TreeNodeKindSandbox, n.Source)
		s, there := known[source]
		if there && n.Kind == api.TreeNodeKindSandbox && s.Parent == n.Parent && !above(key, source) {
			parent = source
		}
		parents[key] = parent
		under[parent] = append(under[parent], n)
	}
	return under
}

func treeRow(io *Streams, lead string, n client.TreeNode) []string {
	name, private, disk := n.Name, "-", "-"
	if n.Kind == api.TreeNodeKindSandbox {
		private = size(n.PrivateKiB << 10)
		if n.Workspace != "" {
			name += " (workspace " + n.Workspace + ")"
		}
	} else {
		disk = size(n.DiskKiB << 10)
	}
	return []string{lead + name, brief(time.Since(time.Unix(n.CreatedAtUnix, 0))), n.State, private, disk, n.Source}
}
