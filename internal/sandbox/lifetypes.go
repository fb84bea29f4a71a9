package sandbox

// TimeoutAction is what happens to a sandbox when its lifetime is over.
type TimeoutAction string

const (
	// KillOnTimeout ends it. It is the default.
	KillOnTimeout TimeoutAction = "kill"
	// PauseOnTimeout pauses it, so that nothing is lost.
	PauseOnTimeout TimeoutAction = "pause"
)

// Limits of what callers attach to a sandbox.
const (
	MaxMetadata      = 64       // entries of metadata
	MaxMetadataBytes = 16 << 10 // all keys and values together
	MaxEnv           = 256      // variables
	MaxEnvBytes      = 64 << 10 // all names and values together
	MaxFront         = 64 << 10 // bytes of a front end's record
)

// Paused is the state of a sandbox whose memory and disk are on disk: it uses no
// memory, outlives the daemon, and goes on where it stood when it is resumed.
const Paused State = "paused"
