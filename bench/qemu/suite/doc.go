// Package suite is what the two sides of the speed comparison share: the list
// of workloads, and the lines by which the guest tells the host how they go.
//
// It must build for the guest and for any host, so it stands on nothing but
// the standard library.
package suite
