package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/bench/qemu/suite"
)

const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment is that of every command: what a shell needs, and what makes
// commits the same everywhere.
var environment = []string{
	"PATH=" + searchPath,
	"HOME=/root",
	"LANG=C.UTF-8",
	"PYTHONHASHSEED=0",
	"GIT_AUTHOR_NAME=bench", "GIT_AUTHOR_EMAIL=bench@localhost", "GIT_AUTHOR_DATE=2024-01-01T00:00:00Z",
	"GIT_COMMITTER_NAME=bench", "GIT_COMMITTER_EMAIL=bench@localhost", "GIT_COMMITTER_DATE=2024-01-01T00:00:00Z",
	"GIT_CONFIG_COUNT=2",
	"GIT_CONFIG_KEY_0=init.defaultBranch", "GIT_CONFIG_VALUE_0=main",
	"GIT_CONFIG_KEY_1=maintenance.auto", "GIT_CONFIG_VALUE_1=false", // nothing in the background
}

// measure runs one workload. A command that fails is reported; an error means
// that commands cannot be run at all.
func measure(reports *os.File, w suite.Workload) error {
	sum := sha256.New()
	if len(w.Setup) > 0 {
		if exit, text := command(w.Setup, io.Discard); exit != 0 {
			return fmt.Errorf("preparing: exit status %d: %s", exit, text)
		}
	}
	// What was written before must not be written to the disk meanwhile.
	unix.Sync()

	report(reports, suite.Line{Event: suite.Start, Name: w.Name})
	exit, text := 0, ""
	for range w.Count {
		if exit, text = command(w.Run, sum); exit != 0 {
			break
		}
	}
	report(reports, suite.Line{Event: suite.Done, Name: w.Name, Exit: exit, Text: text})

	if len(w.Check) > 0 && exit == 0 {
		if exit, text := command(w.Check, sum); exit != 0 {
			return fmt.Errorf("checking: exit status %d: %s", exit, text)
		}
	}
	report(reports, suite.Line{Event: suite.Sum, Name: w.Name, Text: hex.EncodeToString(sum.Sum(nil))})
	return nil
}

// command runs argv with its output going to out. It returns the exit status,
// -1 if there is none, and, unless that is zero, what explains it.
func command(argv []string, out io.Writer) (exit int, text string) {
	path, err := exec.LookPath(argv[0])
	if argv[0] == suite.Self {
		path, err = "/proc/self/exe", nil
	}
	if err != nil {
		return -1, err.Error()
	}
	stderr := &suite.Tail{Limit: 300}
	cmd := &exec.Cmd{Path: path, Args: argv, Env: environment, Stdout: out, Stderr: stderr}
	if err := cmd.Run(); err != nil {
		return cmd.ProcessState.ExitCode(), fmt.Sprintf("%v: %s", err, bytes.TrimSpace(stderr.Text))
	}
	return 0, ""
}
