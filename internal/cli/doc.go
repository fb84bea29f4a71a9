// Package cli is the forkd command line: one file per command, each an options
// struct that flags fill and a run method that works. Commands speak to the
// daemon through package client only, like any other program.
//
// Rules of the house:
//   - Results go to standard output, everything else to standard error.
//   - On a terminal results are tables with a heading; in a pipe they are lines
//     of tab-separated fields without one, times in RFC 3339. --json gives JSON.
//   - What goes wrong is told as "forkd: error: …", then "forkd: hint: …".
//   - Exit status: see Main.
package cli
