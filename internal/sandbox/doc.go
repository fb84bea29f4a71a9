// Package sandbox is the domain: what a user of forkd owns and does. It knows
// snapshots by tag and sandboxes by id, and joins image, machine, snapshot and
// agent into the operations that the REST server and nobody else exposes.
package sandbox
