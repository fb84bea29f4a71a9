// Package e2e holds the end-to-end tests: they build the program, run real
// daemons with real guests, and use them as users do, through the client, the
// command line and the Python SDK. It has no code of its own.
//
// One daemon with one snapshot serves all tests; a test that damages a home or
// ends its daemon works on a clone. Nothing here needs root. The tests are
// skipped with -short, and where no Debian mirror can be reached.
//
// FORKD_TEST_HOME names a directory in which downloads, image and snapshot stay
// for the next run. FORKD_TEST_RACE=1 builds the daemon with the race detector,
// which makes it about ten times slower. FORKD_TEST_GO_STD=1 runs the tests of
// many more packages of Go's standard library in the guest, for half an hour.
package e2e
