package jail

import (
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/kvm"
)

func useKVM(fd int) (engine.Engine, Profile, error) {
	e, err := kvm.Use(fd)
	return e, Profile{Requests: kvm.Requests()}, err
}
