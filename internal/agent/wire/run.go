package wire

import "encoding/json"

// Frame types of running code.
const (
	TypeRun     Type = 50 // client, on a runtime's port: JSON RunRequest
	TypeDisplay Type = 51 // runtime: JSON Display
	TypeRunEnd  Type = 52 // runtime: JSON RunEnd; ends a run
)

// Operations of contexts, which are runtimes that were started on demand.
const (
	OpContextStart Op = "context_start" // ContextStart → RuntimeInfo
	OpContextStop  Op = "context_stop"  // ContextStop → OK when its process has ended
	OpRun          Op = "run"           // RelayedRun → OK, then what a runtime answers to a RunRequest
)

// RunRequest asks a runtime to run code. The answer are Stdout, Stderr and Display frames as they come about, in the order in
// which they did, and one RunEnd.
type RunRequest struct {
	ID   uint64 `json:"id"` // not 0; names the run in a RuntimeInterrupt
	Code string `json:"code"`
	Env  []Name `json:"env,omitempty"` // KEY=VALUE, for this run
}

// RelayedRun is a RunRequest to a runtime that has no port of its own (RuntimeInfo.Port is 0).
type RelayedRun struct {
	Name string `json:"name"`
	RunRequest
}

// Display is a value in the forms that it can be shown in.
type Display struct {
	Main  bool                       `json:"main,omitempty"`  // the value of the last expression
	Data  map[string]json.RawMessage `json:"data"`            // by MIME type: text as a string, binary as base64 in one, JSON as it is
	Chart json.RawMessage            `json:"chart,omitempty"` // a figure as structured data
}

// RunEnd is the last frame of a run.
type RunEnd struct {
	ID    uint64    `json:"id"`
	Count int       `json:"count"` // of runs of this process of the runtime, with this one
	Error *RunError `json:"error,omitempty"`
}

// RunError is what ended a run before its end: an exception, or in a shell a status other than 0.
type RunError struct {
	Name        string `json:"name"`
	Value       string `json:"value"`
	Traceback   string `json:"traceback"`
	Interrupted bool   `json:"interrupted,omitempty"` // by a RuntimeInterrupt
}

// ContextStart asks for a runtime beside the warm one of its kind, with the same imports and warm-up.
type ContextStart struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
	Env  []Name `json:"env,omitempty"`
	Cwd  Name   `json:"cwd,omitempty"` // default: the home of the user
	User string `json:"user,omitempty"`
}

// ContextStop ends a runtime and everything that it has started.
type ContextStop struct {
	Name string `json:"name"`
}
