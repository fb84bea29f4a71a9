// Package e2b puts everything that forkd serves on one address: the API of E2B,
// so that programs written against its SDKs run here unchanged, beside forkd's own
// REST API.
//
// A request is for the data plane if its host is "<port>-<id>.<anything>", or if
// it has the headers E2b-Sandbox-Id and E2b-Sandbox-Port; a host says more than
// headers. It is then for that port of that sandbox and for nothing else, so that
// no page of a sandbox reaches an API under a name of its own. What is signed
// (GET and POST /files with a signature) is for the sandbox whose token has signed
// it. Paths of REST v1 go to that; whatever is left is for the control API.
//
// Who may ask:
//
//   - The APIs want the daemon's token, if it has one, as X-API-Key or as a bearer
//     token. Without one they refuse web pages of other origins and names that are
//     not this machine's.
//   - A sandbox with a token of its own, which is any that was made securely, wants
//     that one on the ports of forkd's services; the services check it. Nothing
//     else is asked of it, so web pages may use it (CORS). One that was made
//     without is open to whoever knows its id, but not to web pages.
//   - A port of a guest is public, unless the sandbox is private: then the traffic
//     token is wanted.
//   - A sandbox that was not made through this API is open to whoever may use the
//     daemon, until somebody connects to it through this API: that gives it a token.
//
// To a browser, what comes from a guest under the daemon's own name is a page of
// no origin.
package e2b
