package processors

import (
	"runtime"
	"testing"
)

func TestFewAndAll(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	before := runtime.GOMAXPROCS(8)
	defer func() {
		state.all = 0
		runtime.GOMAXPROCS(before)
	}()
	expect := func(want int) {
		t.Helper()
		if got := runtime.GOMAXPROCS(0); got != want {
			t.Errorf("%d processors, not %d", got, want)
		}
	}
	All()()
	expect(8) // nobody has asked for few
	Few()
	expect(2)
	first := All()
	second := All()
	expect(8)
	first()
	first()
	expect(8)
	second()
	expect(2)
	Few()
	expect(2)
}

func TestEnvironmentIsObeyed(t *testing.T) {
	t.Setenv("GOMAXPROCS", "3")
	before := runtime.GOMAXPROCS(0)
	Few()
	if got := runtime.GOMAXPROCS(0); got != before {
		t.Errorf("%d processors, not %d", got, before)
	}
}
