// Package client speaks to a forkd daemon.
//
//	c, err := client.FromEnv()
//	boxes, _, err := c.Fork(ctx, client.ForkRequest{SnapshotTag: "pyagent", N: client.Ptr(100)})
//	answer, err := c.Eval(ctx, boxes[0].ID, client.EvalRequest{Code: "numpy.zeros(5).tolist()"})
//
// EvalAll evaluates in many sandboxes with one request.
//
// The types come from api/openapi.yaml. Every method takes a context; ending it
// ends the request, and the daemon then undoes or stops what it was doing for
// it. There is no other time limit: a command may run for as long as it needs.
//
// Errors that the daemon answers with are *Error; errors.As and IsCode tell
// them apart. A daemon that cannot be reached is *ConnectError.
//
// A Client is safe for concurrent use and keeps connections; Close drops them.
package client
