package sandbox

import (
	"encoding/json"
	"time"
)

// Languages of RunCode.
const (
	Python     = "python"
	JavaScript = "javascript"
	Bash       = "bash"
)

// CodeContext is an interpreter in a sandbox that keeps state between runs. The
// snapshot's warm runtime is the context DefaultContext, which cannot be removed.
type CodeContext struct {
	ID       string
	Language string
	Cwd      string
}

// DefaultContext is the id of the context of the snapshot's warm runtime.
const DefaultContext = "default"

// ContextSpec asks for a context.
type ContextSpec struct {
	Language string // default Python
	Cwd      string // default: the home of the user
	User     string // default root
}

// RunSpec asks for code to be run in a context.
type RunSpec struct {
	Code     string
	Context  string            // id; empty: that of the language, made when it is first needed
	Language string            // only if Context is empty; default Python
	Cwd      string            // of a context that is made for this; default: the home of the user
	User     string            // of a context that is made for this; default root
	Env      map[string]string // for this run only
	Timeout  time.Duration     // after which it is interrupted; zero: none
}

// RunEvent is something that running code has brought forth; exactly one field is
// set. Events come as they happen.
type RunEvent struct {
	Stdout string
	Stderr string
	Result *RichResult // a value that was displayed, or that of the last expression
}

// RichResult is a value in every form that it can be shown in, by MIME type: text
// forms as a JSON string, images and PDF as base64 in one, JSON as it is.
type RichResult struct {
	Main  bool                       // the value of the last expression
	Data  map[string]json.RawMessage // such as "text/plain", "text/html", "image/png", "application/json"
	Chart json.RawMessage            // a figure as structured data, if it is one
}

// RunResult is how a run ended.
type RunResult struct {
	Count int        // runs of this context so far
	Error *EvalError // nil if it went well
	// Lost tells that the interpreter has died, and was started again without its state.
	Lost bool
}
