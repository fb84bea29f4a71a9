package sandbox

import (
	"cmp"
	"slices"
	"strings"
)

// Tree returns the family of all snapshots and sandboxes: each names the
// snapshot that it comes from, if that is still there. Parents come before
// their children where they are older, as they are unless clocks went back.
func (m *Manager) Tree() ([]TreeNode, error) {
	snapshots, err := m.Snapshots()
	if err != nil {
		return nil, err
	}
	var nodes []TreeNode
	known := make(map[string]bool)
	for _, s := range snapshots {
		known[s.Tag] = true
	}
	for _, s := range snapshots {
		node := TreeNode{
			Kind: TreeSnapshot, Name: s.Tag, Source: s.BranchedFrom, CreatedAt: s.CreatedAt, State: s.Status,
			DiskKiB: m.exclusiveBytes(s.Tag) >> 10,
		}
		if known[s.ParentTag] {
			node.Parent = s.ParentTag
		}
		nodes = append(nodes, node)
	}
	for _, s := range m.Sandboxes() {
		node := TreeNode{
			Kind: TreeSandbox, Name: s.ID, Source: s.BranchedFrom, Workspace: s.Workspace, CreatedAt: s.CreatedAt,
			State: string(s.State), PrivateKiB: s.PrivateKiB,
		}
		if node.Source == node.Name { // it was rolled back to its own branch
			node.Source = ""
		}
		if known[s.SnapshotTag] {
			node.Parent = s.SnapshotTag
		}
		nodes = append(nodes, node)
	}
	slices.SortFunc(nodes, func(a, b TreeNode) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
	})
	return nodes, nil
}

// exclusiveBytes returns what would be freed on the disk with a snapshot.
func (m *Manager) exclusiveBytes(tag string) int64 {
	chain, err := m.store.Chain(tag)
	if err != nil {
		return 0
	}
	return chain.ExclusiveBytes
}
