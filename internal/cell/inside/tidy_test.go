package inside

import (
	"testing"

	"github.com/forkd-dev/forkd/internal/page"
)

// TestNobodyKeepsWhatNobodyHas: a layer that was to take the place of others, and whose
// last user is gone before that was so, does not keep these from the machine.
func TestNobodyKeepsWhatNobodyHas(t *testing.T) {
	empty := page.NewStack(16)
	defer empty.Release()
	disk := page.NewOverlay(empty, page.NewArena(), 0)
	defer disk.Close()
	for n := range page.Number(2) {
		p, _, err := disk.Write(n)
		if err != nil {
			t.Fatal(err)
		}
		p[0] = 1
		disk.Seal().Release()
	}
	stacks := disk.Stacks()
	s := &Server{whole: []*page.Layer{page.Merge(stacks[1].Layers()...)}}
	for _, stack := range stacks {
		stack.Release()
	}
	if disk.Unseal() != nil {
		t.Fatal("taken back although somebody has it")
	}
	if s.absorb(); len(s.whole) != 0 {
		t.Error("it is kept")
	}
	if disk.Unseal() == nil {
		t.Error("it is kept from the machine")
	}
}
