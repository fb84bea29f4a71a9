// Package sandbox is the domain: what a user of forkd owns and does. It knows
// snapshots by tag and sandboxes by id, and joins image, machine, snapshot and
// agent into the operations that the REST server and nobody else exposes.
//
// Invariants:
//
//   - A sandbox that is branched goes on, whatever becomes of the branch. It
//     stands still only while its overlays are sealed; all that can be done
//     before or after that is.
//
//   - What stands on a snapshot (a sandbox, a branch, a derived snapshot) becomes
//     known before the snapshot can be removed, so a removal sees it.
//
//   - A sandbox that has another machine, after a rollback, is another box under
//     the same id. Whoever has waited for its turn looks again.
//
//   - A workspace resumes from what its record names, and so does a sandbox that was
//     paused. That is durable before its machine ends. What a crash cuts short is
//     found through the record.
//
//   - A sandbox that has no machine and has a record that names a snapshot is
//     paused. Whether it has, and until when, changes only in the turn of its id; but
//     a kill takes the machine at once, so that a pause under way gives up.
//
//   - Which sandboxes there are is in the journal before anybody is told of them, and why they are
//     not there any more before that is so. What it does not say ends nothing that runs, and what
//     cannot be written of it stops nobody. But a machine that a cell has of a sandbox which it says
//     is gone, or has another one made later, is closed; and a cell that does not answer when a daemon
//     starts is ended when all are killed of which it tells.
//
//   - A sandbox whose cell is yet to tell of it is a box that only stands for it (arrival). Nothing is done
//     to it but that it is ended, and it is replaced by what the cell tells, once, unless it was ended.
//
//   - What the host cannot bear is not begun. What runs is left alone.
//
// Lock order: spaceTurns and pausedTurns (nobody has both), box.turn, tagLocks, settling, the store's locks,
// admission.mu, Manager.mu, box.mu, averages.mu, the locks of packages records, journal and cell, in this order;
// arrival.mu, codes.mu and prepared.mu are leaves. Manager.building is never waited for. Nothing is asked of a cell or a
// guest under admission.mu or one that comes after it.
package sandbox
