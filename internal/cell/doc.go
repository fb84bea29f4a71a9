// Package cell is the daemon's side of cells, the processes in which machines live.
//
// A Host starts cells, knows them by a record in its directory, and finds those again
// that an earlier daemon has left. A Cell is the connection to one of them; a VM is a
// machine in it, which is used as a machine.Machine is; a Cut is a machine at one
// instant, whose pages stay in the cell until somebody has to write them down.
//
// What a cell is made to do and how it says so is in package wire, the other side in
// package inside.
//
// Invariants:
//   - A cell may have been taken over by its guest. What it says about its machines is
//     believed; it is never a path, an unchecked length or a number, and never about
//     anything else. Sizes that it tells are those that its machines were made with, or an
//     error; and what it keeps for a later daemon is sealed, so that it stays the daemon's word.
//   - A record names a process by its number, its start and the host's boot. Nothing is
//     done to a process that is not the one meant.
//   - A cell knows what the daemon needs to know of its machines (notes); no other
//     record of them decides anything.
//   - Nobody waits to tell a cell something. Whoever asks waits for a time, or as long as the cell
//     gives signs of life (Watch), and what is done after that is taken back.
//   - A cell is there as long as something lives in it, or somebody has a cut in it.
//   - When a cell is gone all of its machines have ended, with that as the reason.
//
// Lock order: Cell.sending, Host.mu, Cell.mu, VM.mu, Cut.mu. Nothing is sent or waited for under
// the last four.
package cell
