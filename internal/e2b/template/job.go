package template

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/forkd-dev/forkd/internal/e2b/front"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// Names of the parts of a build that are no steps.
const (
	baseStep  = "base"
	finalStep = "finalize"
)

// job is a build that runs. It belongs to one goroutine.
type job struct {
	b     *Builder
	build *build
	from  Resolved
	spec  Spec

	id   string // of the sandbox
	step string // where it is
	now  Settings
}

// turn waits for the job's turn and does it.
func (j *job) turn(ctx context.Context) error {
	j.step = baseStep
	select {
	case j.b.turns <- struct{}{}:
		defer func() { <-j.b.turns }()
	case <-ctx.Done():
		return ctx.Err()
	}
	j.info("starting from %s (snapshot %s)", cmp.Or(j.from.Name, j.from.Snapshot), j.from.Snapshot)
	if err := j.fork(ctx); err != nil {
		return err
	}
	defer j.kill()
	for i, step := range j.spec.Steps {
		j.step = strconv.Itoa(i + 1)
		j.info("[%d/%d] %s %s", i+1, len(j.spec.Steps), step.Type, clip(strings.Join(step.Args, " ")))
		if err := steps[step.Type].do(ctx, j, step); err != nil {
			return fmt.Errorf("%s: %w", step.Type, err)
		}
	}
	j.step = finalStep
	if err := j.start(ctx); err != nil {
		return err
	}
	return j.publish(ctx)
}

func (j *job) info(format string, args ...any) {
	j.build.log.add(Entry{Time: time.Now(), Level: "info", Message: fmt.Sprintf(format, args...), Step: j.step})
}

// fork makes the sandbox that the steps run in.
func (j *job) fork(ctx context.Context) error {
	j.now = Settings{Env: maps.Clone(j.from.Env), User: cmp.Or(j.from.User, front.DefaultUser), Workdir: j.from.Workdir}
	if j.now.Env == nil {
		j.now.Env = make(map[string]string)
	}
	made, err := j.b.m.Fork(ctx, sandbox.ForkSpec{
		Tag: j.from.Snapshot, N: 1, Lifetime: 2 * buildTime,
		Front:    front.Record{Template: j.build.name, EnvdToken: front.NewToken(), Hidden: true}.Encode(),
		Metadata: map[string]string{"template-build": j.build.name},
	})
	if err == nil && made[0].Err != nil {
		err = made[0].Err
	}
	if err != nil {
		return err
	}
	j.id = made[0].Sandbox.ID
	return nil
}

func (j *job) kill() {
	done := make(chan error, 1)
	go func() { done <- j.b.m.Kill(j.id) }()
	select {
	case err := <-done:
		if err != nil {
			j.b.log.Warn("ending the sandbox of a build", "sandbox", j.id, "error", err)
		}
	case <-time.After(killTime):
	}
}

// publish makes the sandbox a snapshot and gives it its name.
func (j *job) publish(ctx context.Context) error {
	id := j.build.id
	tag := j.build.name[:min(len(j.build.name), 55)] + "-" + id[:8]
	j.info("making snapshot %s", tag)
	info, err := j.b.m.Branch(ctx, j.id, sandbox.BranchSpec{Tag: tag, Mode: sandbox.BranchLive, Wait: true})
	if err != nil {
		return err
	}
	made := Build{ID: id, Snapshot: info.Tag, CreatedAt: time.Now().UTC()}
	if err := j.b.store.Publish(j.build.name, made, j.now, j.build.tags...); err != nil {
		return err
	}
	j.info("built %s", j.build.name)
	return nil
}
