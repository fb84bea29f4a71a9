package envd

import (
	"context"
	"fmt"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/forkd-dev/forkd/internal/e2b/front"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// Bounds of how long a stream may have nothing to say.
const (
	minPing     = time.Second
	maxPing     = time.Hour
	defaultPing = 90 * time.Second
)

// call is a request on its way: what it is for and who asks. It belongs to one
// goroutine.
type call struct {
	host   Host
	target *front.Target
	ping   time.Duration // how long streams may have nothing to say

	user    string // who asks
	named   bool   // because the request says so
	account *sandbox.User
}

type callKey struct{}

func callOf(ctx context.Context) *call { return ctx.Value(callKey{}).(*call) }

// newCall takes the user from the request's Basic authentication, where SDKs put
// it, without a password.
func newCall(host Host, r *http.Request) *call {
	c := &call{host: host, target: front.TargetOf(r.Context()), ping: defaultPing}
	c.user = c.target.User()
	if name, _, ok := r.BasicAuth(); ok {
		c.as(name)
	}
	if seconds, err := strconv.Atoi(r.Header.Get("Keepalive-Ping-Interval")); err == nil {
		c.ping = min(max(time.Duration(min(seconds, int(maxPing/time.Second)))*time.Second, minPing), maxPing)
	}
	return c
}

func (c *call) as(user string) { c.user, c.named = user, true }

// id is that of the sandbox.
func (c *call) id() string { return c.target.ID }

// userError tells that a sandbox has no such user.
type userError string

func (e userError) Error() string { return fmt.Sprintf("invalid username: '%s'", string(e)) }

// who looks up the user.
func (c *call) who(ctx context.Context) (*sandbox.User, error) {
	if c.account != nil {
		return c.account, nil
	}
	if c.user == "" {
		return nil, userError(c.user)
	}
	account, err := c.host.User(ctx, c.id(), c.user)
	if isCode(err, sandbox.NotFound) || isCode(err, sandbox.InvalidArgument) {
		return nil, userError(c.user)
	}
	c.account = account
	return account, err
}

// pathError tells that a path can never be one.
type pathError struct{ path, why string }

func (e *pathError) Error() string { return fmt.Sprintf("path %q: %s", e.path, e.why) }

// path makes a path of the request absolute; without one, it is the default
// directory. The guest is asked for the home only if that is needed, or if the user
// was named and may not exist.
func (c *call) path(ctx context.Context, name string) (string, error) {
	if name == "" {
		name = c.target.Record.Workdir
	}
	if strings.ContainsRune(name, 0) {
		return "", &pathError{name, "must not contain a zero byte"}
	}
	rest, tilde := strings.CutPrefix(name, "~")
	if tilde && rest != "" && rest[0] != '/' {
		return "", &pathError{name, "cannot expand user-specific home dir"}
	}
	if path.IsAbs(name) && !c.named {
		return name, nil
	}
	account, err := c.who(ctx)
	switch {
	case err != nil:
		return "", err
	case path.IsAbs(name):
		return name, nil
	case tilde:
		name = rest
	}
	return path.Join(account.Home, name), nil
}
