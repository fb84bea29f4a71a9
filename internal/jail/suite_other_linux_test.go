//go:build linux && !amd64

package jail

import (
	"errors"

	"github.com/forkd-dev/forkd/internal/engine"
)

func useKVM(int) (engine.Engine, Profile, error) {
	return nil, Profile{}, errors.New("the engine kvm is for amd64 only")
}
