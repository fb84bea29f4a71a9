package envd

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/forkd-dev/forkd/internal/e2b/front"
)

// signedBy reports whether a signature was made with a sandbox's token. It may have
// expired.
func signedBy(method string, q url.Values, token string) bool {
	operation := front.Read
	if method == http.MethodPost {
		operation = front.Write
	}
	want := front.Signature(q.Get("path"), operation, q.Get("username"), token, q.Get("signature_expiration"))
	return front.Same(q.Get("signature"), want)
}

// admitFile checks that the request may read, or write, the file that it names.
func (c *call) admitFile(r *http.Request, q url.Values, now time.Time) error {
	want := c.target.Record.EnvdToken
	given := r.Header.Get(tokenHeader)
	switch {
	case want == "":
		return nil
	case given != "":
		if !front.Same(given, want) {
			return errors.New("access token present in header but does not match")
		}
		return nil
	case !q.Has("signature"):
		return errors.New("missing signature query parameter")
	case !signedBy(r.Method, q, want):
		return errors.New("invalid signature")
	}
	if q.Has("signature_expiration") {
		at, err := strconv.ParseInt(q.Get("signature_expiration"), 10, 64)
		if err != nil {
			return errors.New("invalid signature_expiration: must be seconds since 1970")
		}
		if at < now.Unix() {
			return errors.New("signature is already expired")
		}
	}
	return nil
}
