//go:build linux && amd64

package kvm_test

import (
	"testing"

	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/enginetest"
	"github.com/forkd-dev/forkd/internal/engine/kvm"
	"github.com/forkd-dev/forkd/internal/hosttest"
)

func TestMain(m *testing.M) { hosttest.Main(m, hosttest.Files{Guest: guest}) }

func TestEngine(t *testing.T) {
	hosttest.Need(t)
	e, err := kvm.New()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	enginetest.Run(t, func() engine.Engine { return e })
}
