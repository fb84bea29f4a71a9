package front

import "context"

// Ports of services that forkd provides for every sandbox; nothing in the guest
// listens on them.
const (
	EnvdPort        = 49983
	InterpreterPort = 49999
)

// DefaultUser is whose commands and files they are if nobody says.
const DefaultUser = "user"

// Target is the sandbox and the port that a request of the data plane is for.
// The router has found it, seen that it runs, and resumed it if need be; a
// handler behind it checks the sandbox's own token.
type Target struct {
	ID     string
	Port   int
	Record Record
	// Trusted tells that the request comes from who may use the daemon: it needs
	// no token of a sandbox that has none of its own, such as one from elsewhere.
	Trusted bool
}

type targetKey struct{}

// WithTarget returns a context that carries t.
func WithTarget(ctx context.Context, t *Target) context.Context {
	return context.WithValue(ctx, targetKey{}, t)
}

// TargetOf returns what a request with this context is for. The router sets it
// for every request that it passes on; without it, there is a fault in forkd.
func TargetOf(ctx context.Context) *Target {
	t, ok := ctx.Value(targetKey{}).(*Target)
	if !ok {
		panic("BUG: a request of the data plane without a target")
	}
	return t
}

// Admits reports whether a request with this access token may use the sandbox's
// envd. It takes the same time for every wrong token of a length.
func (t *Target) Admits(token string) bool {
	return t.Record.EnvdToken == "" || Same(token, t.Record.EnvdToken)
}

// User is the default user of commands and files.
func (t *Target) User() string {
	if t.Record.User != "" {
		return t.Record.User
	}
	return DefaultUser
}
