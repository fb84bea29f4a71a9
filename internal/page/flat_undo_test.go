package page

import (
	"os"
	"testing"
)

// TestFlatTakesBackAndGoesOver: what a Flat has sealed is part of the next layer if nobody
// keeps it, and is in a file when somebody has written it.
func TestFlatTakesBackAndGoesOver(t *testing.T) {
	a := sharedArena(t)
	s := flatStack(t, a)
	f := newFlat(t, s, a)
	before := a.InUse()
	for n := range Number(10) {
		*f.Read(200 + n) = *stamped(uint64(n) + 1)
	}
	first := f.Seal()
	if f.Bytes() < 20*Size || a.InUse() != before+10 {
		t.Errorf("10 pages that were written and sealed take %d bytes, %d pages of the arena", f.Bytes(), a.InUse()-before)
	}
	if f.Unseal() != nil {
		t.Fatal("what somebody has was taken back")
	}
	first.Release()
	*f.Read(205) = *stamped(50)
	if free := f.Unseal(); free == nil {
		t.Fatal("nothing was taken back")
	} else {
		free()
	}
	second := f.Seal()
	layers := second.Layers()
	top := layers[len(layers)-1]
	if len(layers) != len(s.Layers())+1 || top.Len() != 10 || a.InUse() != before+10 {
		t.Fatalf("the next layer has %d pages, and is the %d. over the others", top.Len(), len(layers)-len(s.Layers()))
	}
	path, _ := writeFile(t, f.Limit(), top.All)
	file, err := OpenLayer(path)
	if err != nil {
		t.Fatal(err)
	}
	os.Remove(path)
	r := NewReplacement()
	r.Add([]*Layer{top}, file)
	c := f.Replacing(r)
	if c == nil || c.Moved || !c.Swap() {
		t.Fatal("it does not go over to the file")
	}
	c.Release()
	r.Close()
	second.Release()
	if a.InUse() != before {
		t.Errorf("%d pages are still in memory", a.InUse()-before)
	}
	*f.Read(206) = *stamped(60)
	third := f.Seal()
	for n := range Number(10) {
		want := map[Number]uint64{5: 50, 6: 60}[n]
		if want == 0 {
			want = uint64(n) + 1
		}
		if *third.Get(200 + n) != *stamped(want) || *f.Read(200 + n) != *stamped(want) {
			t.Errorf("page %d is wrong", 200+n)
		}
	}
	if layers := third.Layers(); layers[len(layers)-2] != file || layers[len(layers)-1].Len() != 1 {
		t.Error("the last layer is not what was written since, over the file")
	}
	third.Release()
	file.Release()
	f.Close()
	s.Release()
	if n := a.InUse(); n != 0 {
		t.Errorf("%d pages are in use at the end", n)
	}
}
