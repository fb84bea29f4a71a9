package soft

import (
	"testing"

	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/enginetest"
)

func TestEngine(t *testing.T) {
	enginetest.Run(t, func() engine.Engine { return New(64) })
}
