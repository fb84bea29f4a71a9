package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/forkd-dev/forkd/api"
)

// EvalAll evaluates code in the warm runtimes of many sandboxes, 1 to 1000 different ones, with
// one request. It calls answer once for each, in the order in which they answer, with what Eval
// would return: a result, or the *Error that kept this one from having one. The error that
// EvalAll returns is about what was asked, or about answers that do not come any more. When ctx
// ends or answer returns an error, the evaluations that still run are interrupted.
func (c *Client) EvalAll(ctx context.Context, ids []string, req EvalRequest, answer func(id string, res *EvalResult, err error) error) error {
	resp, err := c.rest.EvalSandboxes(ctx, api.EvalAllRequest{Sandboxes: ids, Code: req.Code, TimeoutSecs: req.TimeoutSecs})
	if resp, err = c.check(resp, err, http.StatusOK); err != nil {
		return err
	}
	defer resp.Body.Close()
	missing := make(map[string]bool, len(ids))
	for _, id := range ids {
		missing[id] = true
	}
	lines := newLineReader(resp.Body)
	lines.max = maxResultLine
	for len(missing) > 0 {
		var a api.EvalAnswer
		if err := lines.next(&a); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("evaluating, %d of %d have not answered: %w", len(missing), len(ids), c.transportError(err))
		}
		if !missing[a.SandboxID] || (a.Result == nil) == (a.Error == nil) {
			return fmt.Errorf("evaluating: an answer of sandbox %q has no place here", a.SandboxID)
		}
		delete(missing, a.SandboxID)
		var failed error
		if a.Error != nil {
			failed = fromBody(0, a.Error)
		}
		if err := answer(a.SandboxID, a.Result, failed); err != nil {
			return err
		}
	}
	drain(resp)
	return nil
}
