// Package interpreter is what E2B's code interpreter SDKs find on port 49999 of a
// sandbox: code that runs in contexts, which keep their state, and whose results
// come as a stream of lines of JSON. It runs in the daemon and works on sandboxes
// through the domain.
//
// A Service is an http.Handler for requests that carry a front.Target in their
// context. It serves
//
//	POST   /execute                 run code, in a context or that of a language
//	POST   /contexts                make a context
//	GET    /contexts                list them
//	DELETE /contexts/{id}           remove one
//	POST   /contexts/{id}/restart   start one anew
//	GET    /health
//
// Each line has a type: stdout, stderr, result, error, number_of_executions,
// keepalive, unexpected_end_of_execution, and always last, end_of_execution. A
// client that goes away interrupts its code. Output is not buffered: code waits
// for a client that does not read.
//
// SDKs send the sandbox's access token with /execute only, so that is where it is
// demanded; a wrong one is refused everywhere.
package interpreter
