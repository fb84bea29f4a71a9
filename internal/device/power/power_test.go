package power

import (
	"slices"
	"testing"

	"github.com/forkd-dev/forkd/internal/bus"
)

var _ bus.Device = (*Device)(nil)

type event struct {
	action Action
	code   uint16
}

func TestActions(t *testing.T) {
	for _, c := range []struct {
		name   string
		offset uint64
		width  int
		value  uint64
		want   []event
	}{
		{"off", 0, 4, 0x5555, []event{{Off, 0}}},
		{"reset", 0, 4, 0x7777, []event{{Reset, 0}}},
		{"failed", 0, 4, 0x3333, []event{{Failed, 0}}},
		{"failed with a code", 0, 4, 0x002a3333, []event{{Failed, 42}}},
		{"no action", 0, 4, 0x1234, nil},
		{"zero", 0, 4, 0, nil},
		{"another register", 4, 4, 0x5555, nil},
		{"half a register", 0, 2, 0x5555, nil},
		{"two registers", 0, 8, 0x5555, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []event
			d := New(func(a Action, code uint16) { got = append(got, event{a, code}) })
			d.Write(c.offset, c.width, c.value)
			if !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
			if v := d.Read(c.offset, c.width); v != 0 {
				t.Errorf("reads %#x", v)
			}
		})
	}
}
