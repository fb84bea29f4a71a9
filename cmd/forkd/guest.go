package main

import (
	"embed"
	"errors"

	"github.com/forkd-dev/forkd/internal/daemon/launch"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// guestFiles has the agent that runs in guests, once "make build" has built it.
// The directory is embedded whole, so that plain "go build" works without it.
//
//go:embed guest
var guestFiles embed.FS

const agentFile = "guest/forkd-agent."

// guestAgent returns the agent's executable for an ISA.
func guestAgent(isa engine.ISA) ([]byte, error) {
	agent, err := guestFiles.ReadFile(agentFile + string(isa))
	if err != nil {
		return nil, &launch.Error{
			Message: "this forkd was built without the guest agent",
			Hint:    "build it with `make build`",
		}
	}
	return agent, nil
}

// domainError keeps a domain error's hint for people who see it on the command
// line and not in an answer.
func domainError(err error) error {
	var fault *sandbox.Error
	if errors.As(err, &fault) {
		return &launch.Error{Message: err.Error(), Hint: fault.Hint}
	}
	return err
}
