// Package journal tells a later daemon which sandboxes there are, and why others are not there any more. What a
// sandbox is its cell knows; the journal is for when the cell is gone, too. docs/format/journal.md is its format.
//
// A Journal is told what happens: sandboxes begin, end by themselves, and are gone when they are listed no more. It
// appends each of these to a file as a line (entry), and keeps what all lines together tell (ledger), from which it
// writes the file anew when that has grown. It knows sandboxes by id and cells by name, and asks neither for anything.
//
// Invariants:
//
//   - It outlives processes and is not synced: a loss of power may take what was written last.
//
//   - What cannot be read or written of it is told in the log, and whoever wanted that goes on.
//
//   - If it lacks something it says so, in the file too, until all is known again: a process of an earlier daemon may
//     outlive several that have not heard of it.
//
//   - Of a file nothing is believed that no forkd of this version writes.
//
//   - What it remembers is bounded: sandboxes that are listed by how many there can be, those that have gone by their
//     number, while cells hear of it, and by their ids and reasons in any case.
//
// Lock order: Journal.mu, departed.mu, the locks of what Open is given. Who asks why a sandbox has gone needs the second
// only, and waits for no disk.
package journal
