// Package template is what the E2B API calls templates: names for snapshots, with
// tags, and builds that make a snapshot by running steps in a sandbox.
//
// Invariants:
//   - A name leads to a snapshot of the domain: a configured alias first, then what
//     was built or published under the name, then the snapshot of that tag.
//   - What is published is on disk before anybody is told. A build that was under
//     way when the daemon ended is forgotten, and has left nothing.
//   - A build's sandbox ends with the build, however that ends.
//   - Uploaded archives are opened in guests only.
//
// Lock order: Store.mu and build.mu are leaves; Builder.mu before build.mu.
package template
