// Package envd is what E2B's SDKs find on port 49983 of a sandbox: processes,
// files and a few facts. It runs in the daemon and works on sandboxes through
// the domain, so nothing of it is in a guest.
//
// A Service is an http.Handler for requests that carry a front.Target in their
// context. It serves
//
//   - the Connect services process.Process and filesystem.Filesystem, with JSON
//     and binary messages and gzip, as the packages below rpc describe them;
//   - GET /health, /metrics and /envs;
//   - GET and POST /files, POST /files/compose.
//
// It checks the sandbox's token and, for /files, signatures. Who asks is a user
// of the guest: relative paths start at their home, their processes run as them,
// and what they write is theirs.
//
// A process belongs to the sandbox. A stream that ends leaves it alone, unless it
// ends because the time that Start was given is over. Streams hold one message at
// a time: a process waits for a client that does not read. Files go through in
// pieces, whatever their size.
//
// A watcher, the form of watching for clients that ask again and again, holds at
// most maxPending changes, and is removed when nobody has asked for
// watcherLifetime.
package envd

// Version is that of the envd whose API this is. SDKs ask for features by it, the
// last being watches on network mounts.
const Version = "0.6.4"
