package control

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/forkd-dev/forkd/internal/e2b/front"
	"github.com/forkd-dev/forkd/internal/jsonbody"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// live finds a sandbox that has not ended, which is all that E2B knows, and what is remembered of it.
func (a *API) live(ctx context.Context, id string) (*sandbox.Info, front.Record, error) {
	info, err := a.m.Known(ctx, id)
	if err != nil {
		return nil, front.Record{}, err
	}
	if info.State != sandbox.Running && info.State != sandbox.Paused {
		return nil, front.Record{}, refuse(http.StatusNotFound, "sandbox %q was not found: %s", clip(id), info.Reason)
	}
	rec, err := front.Decode(info.Front)
	return info, rec, err
}

// update changes what is remembered of a sandbox, in one step.
func (a *API) update(r *http.Request, id string, change func(*front.Record) error) error {
	return a.m.SetFront(r.Context(), id, func(old json.RawMessage) (json.RawMessage, error) {
		rec, err := front.Decode(old)
		if err == nil {
			err = change(&rec)
		}
		if err != nil {
			return nil, err
		}
		return rec.Encode(), nil
	})
}

// adopt returns what is remembered of a sandbox, and gives one that was not made through this API what its
// clients need: a token, since they do not send the daemon's along to it.
func (a *API) adopt(r *http.Request, info *sandbox.Info) (rec front.Record, err error) {
	if len(info.Front) > 0 {
		return front.Decode(info.Front)
	}
	err = a.update(r, info.ID, func(now *front.Record) error {
		if now.EnvdToken == "" {
			now.Template = info.SnapshotTag
			secure(now, true)
		}
		rec = *now
		return nil
	})
	return rec, err
}

// connect hands a sandbox to another client: it resumes one that is paused, and
// never brings the end of one nearer.
func (a *API) connect(g generation) route {
	return func(w http.ResponseWriter, r *http.Request) error {
		var req struct {
			Timeout *int  `json:"timeout"`
			Memory  *bool `json:"memory"`
		}
		if err := jsonbody.ReadOptional(w, r, maxBody, &req); err != nil {
			return err
		}
		if req.Timeout == nil && g == v1 {
			return invalid("timeout: required")
		}
		life, err := seconds("timeout", req.Timeout, g.lifetime())
		if err != nil {
			return err
		}
		if req.Memory != nil && !*req.Memory {
			return missing("memory: false", "a sandbox resumes with its memory")
		}
		id := r.PathValue("id")
		info, _, err := a.live(r.Context(), id)
		if err != nil {
			return err
		}
		status := http.StatusOK
		if info.State == sandbox.Paused {
			status = http.StatusCreated
			info, err = a.m.Unpause(r.Context(), id, duration(life))
			a.journal.note(id, levelInfo, "resumed")
		} else {
			info, err = a.m.ExtendLifetime(r.Context(), id, duration(life))
		}
		if err != nil {
			return err
		}
		rec, err := a.adopt(r, info)
		if err != nil {
			return err
		}
		answer(w, status, a.sandbox(r, info, rec))
		return nil
	}
}

// resume is connect as older clients know it: only for what is paused.
func (a *API) resume(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Timeout   *int  `json:"timeout"`
		AutoPause bool  `json:"autoPause"`
		Memory    *bool `json:"memory"`
	}
	if err := jsonbody.ReadOptional(w, r, maxBody, &req); err != nil {
		return err
	}
	life, err := seconds("timeout", req.Timeout, defaultV1)
	if err != nil {
		return err
	}
	id := r.PathValue("id")
	info, _, err := a.live(r.Context(), id)
	switch {
	case err != nil:
		return err
	case info.State != sandbox.Paused:
		return refuse(http.StatusConflict, "sandbox %s is running already", id)
	case req.AutoPause && info.OnTimeout != sandbox.PauseOnTimeout:
		return invalid("autoPause: it is chosen when a sandbox is created, and this one was created without")
	case req.Memory != nil && !*req.Memory:
		return missing("memory: false", "a sandbox resumes with its memory")
	}
	if info, err = a.m.Unpause(r.Context(), id, duration(life)); err != nil {
		return err
	}
	a.journal.note(id, levelInfo, "resumed")
	rec, err := a.adopt(r, info)
	if err != nil {
		return err
	}
	answer(w, http.StatusCreated, a.sandbox(r, info, rec))
	return nil
}

func (a *API) pause(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Memory *bool `json:"memory"`
	}
	if err := jsonbody.ReadOptional(w, r, maxBody, &req); err != nil {
		return err
	}
	if req.Memory != nil && !*req.Memory {
		return missing("memory: false", "a pause always keeps memory")
	}
	id := r.PathValue("id")
	info, _, err := a.live(r.Context(), id)
	if err != nil {
		return err
	}
	if info.State == sandbox.Paused {
		return refuse(http.StatusConflict, "sandbox %s is paused already", id)
	}
	if _, err := a.m.Pause(r.Context(), id); err != nil {
		return err
	}
	a.journal.note(id, levelInfo, "paused")
	return done(w)
}

// timeout sets when a sandbox's lifetime is over, earlier or later than it was.
func (a *API) timeout(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Timeout *int `json:"timeout"`
	}
	if _, err := jsonbody.Read(w, r, maxBody, &req); err != nil {
		return err
	}
	if req.Timeout == nil {
		return invalid("timeout: required")
	}
	life, err := seconds("timeout", req.Timeout, 0)
	if err != nil {
		return err
	}
	id := r.PathValue("id")
	if _, _, err := a.live(r.Context(), id); err != nil {
		return err
	}
	if _, err := a.m.SetLifetime(r.Context(), id, duration(life)); err != nil {
		return err
	}
	return done(w)
}

// refresh puts off the end of a sandbox.
func (a *API) refresh(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Duration *int `json:"duration"`
	}
	if err := jsonbody.ReadOptional(w, r, maxBody, &req); err != nil {
		return err
	}
	life, err := seconds("duration", req.Duration, defaultV1)
	if err != nil {
		return err
	}
	id := r.PathValue("id")
	if _, _, err := a.live(r.Context(), id); err != nil {
		return err
	}
	if _, err := a.m.ExtendLifetime(r.Context(), id, duration(life)); err != nil {
		return err
	}
	return done(w)
}

func (a *API) kill(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if _, err := a.m.Sandbox(id); err != nil {
		return err
	}
	if err := a.m.Kill(id); err != nil {
		return err
	}
	a.journal.drop(id)
	a.sweep()
	return done(w)
}

// maxForks is how many sandboxes one fork makes at most.
const maxForks = 100

// forkResult is the outcome for one child: exactly one field is set.
type forkResult struct {
	Sandbox *sandboxJSON `json:"sandbox,omitempty"`
	Error   *Error       `json:"error,omitempty"`
}

// fork makes children of a sandbox that is as its source is, but for its tokens.
func (a *API) fork(g generation) route {
	return func(w http.ResponseWriter, r *http.Request) error {
		var req struct {
			Timeout *int  `json:"timeout"`
			Count   *int  `json:"count"`
			Memory  *bool `json:"memory"`
		}
		if err := jsonbody.ReadOptional(w, r, maxBody, &req); err != nil {
			return err
		}
		life, err := seconds("timeout", req.Timeout, g.lifetime())
		if err != nil {
			return err
		}
		count := 1
		if req.Count != nil {
			count = *req.Count
		}
		switch {
		case count < 1 || count > maxForks:
			return invalid("count: must be 1 to %d, not %d", maxForks, count)
		case req.Memory != nil && !*req.Memory:
			return missing("memory: false", "a fork goes on with the memory of its source")
		}
		id := r.PathValue("id")
		source, rec, err := a.live(r.Context(), id)
		if err != nil {
			return err
		}
		secure(&rec, rec.EnvdToken != "" || len(source.Front) == 0)
		made, err := a.m.ForkSandbox(r.Context(), id, sandbox.ForkSpec{
			N: count, Lifetime: duration(life), Metadata: source.Metadata,
			OnTimeout: source.OnTimeout, AutoResume: source.AutoResume, Front: rec.Encode(),
		})
		if err != nil {
			return err
		}
		a.journal.note(id, levelInfo, "forked")
		results := make([]forkResult, len(made))
		for i, child := range made {
			results[i] = a.forked(r, id, child)
		}
		answer(w, http.StatusCreated, results)
		return nil
	}
}

// forked gives a child tokens of its own.
func (a *API) forked(r *http.Request, source string, child sandbox.ForkResult) forkResult {
	if child.Err != nil {
		return forkResult{Error: describe(r.Context(), child.Err)}
	}
	var rec front.Record
	err := a.update(r, child.Sandbox.ID, func(now *front.Record) error {
		secure(now, now.EnvdToken != "")
		rec = *now
		return nil
	})
	if err != nil {
		a.m.Kill(child.Sandbox.ID)
		return forkResult{Error: describe(r.Context(), err)}
	}
	a.journal.note(child.Sandbox.ID, levelInfo, "forked from "+source)
	out := a.sandbox(r, child.Sandbox, rec)
	return forkResult{Sandbox: &out}
}
