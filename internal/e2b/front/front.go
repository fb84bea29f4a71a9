// Package front is what the E2B-compatible API remembers of a sandbox beyond what
// the domain does: it lies in sandbox.Info.Front and lives as long as the sandbox
// does, pauses and restarts of the daemon included. It is also what the router of
// the data plane tells the services behind it, in a Target.
package front

import (
	"encoding/json"
	"fmt"
)

// version is that of the record.
const version = 1

// Record belongs to one sandbox that was created through the E2B API. Sandboxes
// from elsewhere have none and are treated as the zero Record: they are open to
// whoever may use the daemon.
type Record struct {
	Version      int             `json:"version"`
	Template     string          `json:"template"`                // as its creator named it
	EnvdToken    string          `json:"envd_token,omitempty"`    // empty: not secured
	TrafficToken string          `json:"traffic_token,omitempty"` // for ports of guests, if Private
	Private      bool            `json:"private,omitempty"`       // ports want the traffic token
	MaskHost     string          `json:"mask_host,omitempty"`     // Host header that servers in the guest see
	Network      json.RawMessage `json:"network,omitempty"`       // as it was asked for
	Internet     *bool           `json:"internet,omitempty"`      // allow_internet_access as it was asked for
	HTTPSPorts   []int           `json:"https_ports,omitempty"`   // ports on which servers in the guest speak TLS
	User         string          `json:"user,omitempty"`          // default user of commands and files; empty: "user"
	Workdir      string          `json:"workdir,omitempty"`       // default directory of commands; empty: the user's home
	Hidden       bool            `json:"hidden,omitempty"`        // the API's own, such as a build's: not listed
}

// Decode reads a record. Nothing at all is the zero Record.
func Decode(b json.RawMessage) (Record, error) {
	var r Record
	if len(b) == 0 {
		return r, nil
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("reading a sandbox's E2B record: %w", err)
	}
	if r.Version != version {
		return r, fmt.Errorf("a sandbox's E2B record has version %d, this forkd reads version %d", r.Version, version)
	}
	return r, nil
}

// Encode returns the record as Decode reads it.
func (r Record) Encode() json.RawMessage {
	r.Version = version
	b, err := json.Marshal(r)
	if err != nil {
		panic("BUG: a record of strings does not marshal: " + err.Error())
	}
	return b
}
