package jail

import (
	"slices"

	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/kvm"
	"github.com/forkd-dev/forkd/internal/page"
)

func useKVM(fd int) (engine.Engine, Profile, error) {
	if err := page.PrepareFlats(); err != nil {
		return nil, Profile{}, err
	}
	e, err := kvm.Use(fd)
	return e, Profile{Requests: slices.Concat(kvm.Requests(), page.Requests())}, err
}
