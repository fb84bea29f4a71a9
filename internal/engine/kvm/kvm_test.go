//go:build linux && amd64

package kvm

import (
	"testing"

	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/enginetest"
	"github.com/forkd-dev/forkd/internal/hosttest"
)

func TestMain(m *testing.M) { hosttest.Main(m, hosttest.Files{}) }

func TestEngine(t *testing.T) {
	hosttest.Need(t)
	e, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	enginetest.Run(t, func() engine.Engine { return e })
}
