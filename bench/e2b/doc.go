// Command e2b measures forkd through the official npm package of E2B, as its
// users feel it: it starts a daemon with a snapshot like E2B's own template,
// installs the package in the version that conformance/e2b pins, and prints JSON.
//
//	go run ./bench/e2b [-forkd bin/forkd] [-home DIR] [-only NAMES]
//
// # Figures
//
//   - first_command_p50_ms: from the call of Sandbox.create until the result of
//     commands.run('echo ok') is there; one after the other, the median of 30.
//   - burst100_s: from the first of 100 calls of Sandbox.create, all made at once,
//     until the last of the 100 sandboxes has answered its first commands.run; the
//     median of 3 bursts. burst100_created_s is when the last creation was answered.
//   - run_code_p50_ms: runCode('1+1') in a sandbox that has run code before; the
//     median of 200, one after the other.
//   - upload_mb_s, download_mb_s: 64 MiB of random bytes with files.write and
//     files.read, in units of 10^6 bytes; the median of 5. What comes back is
//     compared with what was sent, and identical says whether it was the same.
//   - daemon_growth_mib: how far the daemon's resident memory rises while a command
//     prints 200 MB, all of which the program receives; sampled every 10 ms. The
//     same command has printed 20 MB before, so that the guest's own pages, which
//     are in the daemon, are there already. stream_mb_s is its rate.
//   - lost_bytes: bytes that are missing from, or wrong in, the output of 1,000
//     commands that are started at once over 50 sandboxes.
//
// Node runs on the same machine, and its time is in all of them.
package main
