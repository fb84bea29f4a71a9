// Package proc starts, holds, kills and reaps the processes of a guest.
//
// It exists instead of os/exec because the agent is process 1: orphans come to it, so it has to wait for any child, and a
// wait for any child steals the exit statuses that os/exec waits for. Here one reaper waits for everything and hands the
// statuses out; a start and its entry in the table are one step under the reaper's lock, so no exit is ever missed.
//
// A process tree is a cgroup where cgroup v2 can be used, and else a process group, which a descendant can leave.
//
// Lock order: Table.mu is the only lock, and it is held across fork and exec but never across a wait.
package proc
