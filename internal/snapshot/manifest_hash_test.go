package snapshot

import "testing"

// TestMachineHash: what a child begins as is known by all of it, and not while some of it is being written.
func TestMachineHash(t *testing.T) {
	layers := func(digests ...string) (s StackRef) {
		for _, d := range digests {
			s.Layers = append(s.Layers, LayerRef{Digest: d, Size: 1})
		}
		return s
	}
	base := Manifest{Memory: layers("a", "c"), Scratch: layers("d"), State: FileRef{Size: 1, SHA256: "e"}, Root: FileRef{Size: 1, SHA256: "f"}}
	same, below, disk, state, root := base, base, base, base, base
	same.Tag, same.BranchedFrom = "another", "name"
	below.Memory = layers("b", "c")
	disk.Scratch = layers("g")
	state.State.SHA256 = "h"
	root.Root.SHA256 = "i"
	if same.MachineHash() != base.MachineHash() || base.MachineHash() == "" {
		t.Error("names make a difference")
	}
	for what, m := range map[string]Manifest{"a lower layer": below, "the disk": disk, "the state": state, "the root": root} {
		if m.MachineHash() == base.MachineHash() {
			t.Errorf("%s makes no difference", what)
		}
	}
	if h := (&Manifest{}).MachineHash(); h != "" {
		t.Errorf("while it is being written it is %q", h)
	}
}
