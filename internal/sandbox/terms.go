package sandbox

import (
	"maps"
	"strings"
)

// terms are what a sandbox was given when it was made. They never change, and
// siblings share the maps.
type terms struct {
	limits        Limits
	metadata, env map[string]string
	onTimeout     TimeoutAction
	autoResume    bool
}

func (t terms) check() error {
	if err := t.limits.check(); err != nil {
		return err
	}
	switch {
	case t.onTimeout != KillOnTimeout && t.onTimeout != PauseOnTimeout:
		return fail(InvalidArgument, "kill and pause are known", "unknown action %q for the end of a lifetime", t.onTimeout)
	case len(t.metadata) > MaxMetadata || size(t.metadata) > MaxMetadataBytes:
		return fail(InvalidArgument, "", "metadata has at most %d entries with %d bytes", MaxMetadata, MaxMetadataBytes)
	case len(t.env) > MaxEnv || size(t.env) > MaxEnvBytes:
		return fail(InvalidArgument, "", "an environment has at most %d variables with %d bytes", MaxEnv, MaxEnvBytes)
	}
	for name, value := range t.env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return fail(InvalidArgument, "", "malformed variable %q", name)
		}
	}
	return nil
}

func size(m map[string]string) (n int) {
	for k, v := range m {
		n += len(k) + len(v)
	}
	return n
}

// over returns the variables of a request over those of the sandbox.
func over(base, env map[string]string) map[string]string {
	if len(base) == 0 {
		return env
	}
	all := maps.Clone(base)
	maps.Copy(all, env)
	return all
}

// names tell a guest from all others. A sandbox keeps them over a pause.
type names struct {
	MachineID string `json:"machine_id"` // 32 hexadecimal digits
	BootID    string `json:"boot_id"`    // a UUID
}

func newNames() names { return names{MachineID: randomHex(16), BootID: newUUID()} }

func (n names) valid() bool { return len(n.MachineID) == 32 && len(n.BootID) == 36 }
