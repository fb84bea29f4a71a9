package cli

import (
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/client"
)

func TestTreeOnTerminal(t *testing.T) {
	fake := newFake(t.TempDir())
	for _, args := range [][]string{
		{"fork", "-t", "base"}, {"snapshot", "--from-sandbox", "sb000000000001", "-t", "twig"}, {"fork", "-t", "twig", "-n", "2"},
		{"workspace", "create", "w", "-t", "base"}, {"fork", "--from-sandbox", "sb000000000001", "-n", "1"},
	} {
		if status, _, errs := terminal(t, fake, "", args...); status != 0 {
			t.Fatalf("%q: %s", args, errs)
		}
	}
	_, out, errs := terminal(t, fake, "", "tree")
	for _, want := range []string{
		"NAME ", "\nbase ", "\n├─ twig ", "\n│  ├─ sb000000000003 ", "\n│  └─ sb000000000004 ", "\n├─ sb000000000001 ", "\n│  └─ sb000000000007 ", "\n└─ sb000000000005 (workspace w) ", "64.0 KiB", "1.0 MiB",
	} {
		if !strings.Contains("\n"+out, want) {
			t.Errorf("no %q in\n%s%s", want, out, errs)
		}
	}
	if strings.Count(out, "\n") != 8 {
		t.Errorf("lines:\n%s", out)
	}
}

// TestDrawTree: whatever the parents say, every node is drawn exactly once.
func TestDrawTree(t *testing.T) {
	io := &Streams{OutTTY: true}
	rows := drawTree(io, []client.TreeNode{
		{Kind: "sandbox", Name: "orphan", Parent: "gone"},
		{Kind: "snapshot", Name: "a", Parent: "gone"},
		{Kind: "snapshot", Name: "x", Parent: "y"}, {Kind: "snapshot", Name: "y", Parent: "x"},
		{Kind: "snapshot", Name: "self", Parent: "self"},
		{Kind: "snapshot", Name: "b", Parent: "a"}, {Kind: "sandbox", Name: "a", Parent: "b"},
	})
	var names []string
	for _, row := range rows {
		names = append(names, row[0])
	}
	if got := strings.Join(names, "|"); got != "orphan|a|└─ b|   └─ a|y|└─ x|self" {
		t.Errorf("drawn: %s", got)
	}
}

// TestDrawTreeAfterRollback: a sandbox that was rolled back to its own branch stands
// under that, and what was forked from it under the sandbox.
func TestDrawTreeAfterRollback(t *testing.T) {
	nodes := []client.TreeNode{
		{Kind: "snapshot", Name: "base"},
		{Kind: "sandbox", Name: "A", Parent: "cyc", Source: "A"},
		{Kind: "snapshot", Name: "cyc", Parent: "base", Source: "A"},
		{Kind: "sandbox", Name: "B", Parent: "cyc", Source: "A"},
		{Kind: "sandbox", Name: "P", Parent: "cyc", Source: "Q"}, {Kind: "sandbox", Name: "Q", Parent: "cyc", Source: "P"},
	}
	for range 2 {
		var names []string
		for _, row := range drawTree(&Streams{OutTTY: true}, nodes) {
			names = append(names, row[0])
		}
		if got := strings.Join(names, "|"); got != "base|└─ cyc|   ├─ A|   │  └─ B|   └─ Q|      └─ P" {
			t.Errorf("drawn: %s", got)
		}
	}
	fake := newFake(t.TempDir())
	for _, args := range [][]string{
		{"fork", "-t", "base"}, {"snapshot", "--from-sandbox", "sb000000000001", "-t", "cyc"},
		{"rollback", "sb000000000001", "--to", "cyc"}, {"fork", "--from-sandbox", "sb000000000001"},
	} {
		if status, _, errs := terminal(t, fake, "", args...); status != 0 {
			t.Fatalf("%q: %s", args, errs)
		}
	}
	_, out, _ := terminal(t, fake, "", "tree")
	if strings.Count(out, "\n") != 5 || !strings.Contains(out, "└─ sb000000000001 ") || !strings.Contains(out, "└─ sb000000000004 ") {
		t.Errorf("after a rollback:\n%s", out)
	}
}
