package template

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

const (
	readyTime  = 5 * time.Minute        // for a start command to become ready
	readyPause = 500 * time.Millisecond // between two looks
	settleTime = 2 * time.Second        // for a start command without a ready command
)

// start runs the start command and waits until it is ready. The process goes on
// in the snapshot, and from there in every sandbox.
func (j *job) start(ctx context.Context) error {
	var pid int
	if j.spec.StartCmd != "" {
		j.info("starting %s", clip(j.spec.StartCmd))
		a, err := j.b.m.StartProcess(ctx, j.id, sandbox.ProcessSpec{
			Args: []string{"/bin/bash", "-l", "-c", j.spec.StartCmd}, User: j.now.User, Env: j.now.Env, Cwd: j.now.Workdir,
		})
		if err != nil {
			return fmt.Errorf("start command: %w", err)
		}
		pid = a.Process().PID
		if err := a.Close(); err != nil {
			return fmt.Errorf("start command: %w", err)
		}
	}
	switch {
	case j.spec.ReadyCmd != "":
		return j.await(ctx, pid)
	case pid != 0:
		if err := pause(ctx, settleTime); err != nil {
			return err
		}
		return j.alive(ctx, pid)
	}
	return nil
}

// await runs the ready command until it succeeds.
func (j *job) await(ctx context.Context, pid int) error {
	j.info("waiting for %s", clip(j.spec.ReadyCmd))
	ctx, cancel := context.WithTimeoutCause(ctx, readyTime, fmt.Errorf("it was not ready within %s", readyTime))
	defer cancel()
	for {
		result, err := j.b.m.Exec(ctx, j.id, sandbox.Command{
			Args: []string{"/bin/bash", "-l", "-c", j.spec.ReadyCmd}, User: j.now.User, Env: j.now.Env, Cwd: j.now.Workdir,
			Stdout: io.Discard, Stderr: io.Discard, OutputLimit: maxLog,
		})
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("ready command: %w", context.Cause(ctx))
		case err != nil:
			return fmt.Errorf("ready command: %w", err)
		case result.ExitCode == 0:
			return nil
		}
		if pid != 0 {
			if err := j.alive(ctx, pid); err != nil {
				return err
			}
		}
		if pause(ctx, readyPause) != nil {
			return fmt.Errorf("ready command: %w", context.Cause(ctx))
		}
	}
}

// alive sees that the start command has not failed. One that has succeeded may
// have left a server in the background.
func (j *job) alive(ctx context.Context, pid int) error {
	a, err := j.b.m.AttachProcess(ctx, j.id, sandbox.ProcessRef{PID: pid})
	if err != nil {
		return fmt.Errorf("start command: %w", err)
	}
	defer a.Close()
	if exit := a.Process().Exit; exit != nil && exit.Code != 0 {
		return fmt.Errorf("start command: exit status %d", exit.Code)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
