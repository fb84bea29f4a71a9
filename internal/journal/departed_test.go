package journal

import (
	"fmt"
	"testing"
)

// TestDepartedAreBounded: the last ones are remembered, and of what a cell may not have heard all, within bounds.
func TestDepartedAreBounded(t *testing.T) {
	d := &newLedger(most).departed
	deaf := map[string]bool{"deaf": true}
	const first = 500
	id := func(i int) string { return fmt.Sprintf("sb%012x", i) }
	forget := func(from, to int) {
		for i := from; i < to; i++ {
			cell := "well"
			if i < first && i%2 == 0 {
				cell = "deaf"
			}
			for range 2 {
				d.add(id(i), departure{fmt.Sprint("reason ", i), cell})
			}
			d.add(id(i), departure{killed, ""})
		}
	}
	has := func(i int) bool { return d.reason(id(i)) == killed }
	forget(0, most+first)
	if len(d.order) != most+first {
		t.Errorf("before anybody knows which cells there are %d are remembered", len(d.order))
	}
	d.forgetting(func() map[string]bool { return deaf })
	last := most + first + 2*departedAtOnce
	forget(most+first, last)
	if len(d.order) > most+2*departedAtOnce || !has(0) || has(1) || !has(first-2) || has(first-1) || has(first) || !has(last-1) {
		t.Errorf("of %d that have gone %d are remembered", last, len(d.order))
	}
	deaf = nil // it has heard it all
	forget(last, last+2*departedAtOnce)
	if len(d.order) > most+departedAtOnce || has(0) || len(d.known) != len(d.order) {
		t.Errorf("of %d that have gone %d are remembered, and %d reasons", last, len(d.order), len(d.known))
	}
	deaf = map[string]bool{"deaf": true}
	for i := range 2 * maxDepartedText / len(id(0)) {
		d.add(id(i), departure{"x", "deaf"})
	}
	text := 0
	for id, why := range d.known {
		text += len(id) + len(why.reason)
	}
	if text > maxDepartedText || text < maxDepartedText/2 || text != d.text || len(d.known) != len(d.order) {
		t.Errorf("%d bytes of %d are remembered, and are taken for %d", text, len(d.known), d.text)
	}
}
