package control

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"time"

	"github.com/forkd-dev/forkd/internal/e2b/front"
	"github.com/forkd-dev/forkd/internal/jsonbody"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// Limits of bodies, in bytes.
const (
	maxBody      = 64 << 10
	maxLargeBody = 2 << 20 // of a create or a build
)

// Lifetimes in seconds.
const (
	defaultV1  = 15
	defaultV2  = 300
	maxSeconds = int(sandbox.MaxLifetime / time.Second)
)

// seconds checks a lifetime; def stands for one that is left out.
func seconds(field string, given *int, def int) (int, error) {
	if given == nil {
		return def, nil
	}
	if *given < 1 || *given > maxSeconds {
		return 0, invalid("%s: must be 1 to %d seconds, not %d", field, maxSeconds, *given)
	}
	return *given, nil
}

func duration(seconds int) time.Duration { return time.Duration(seconds) * time.Second }

func (g generation) lifetime() int {
	if g == v1 {
		return defaultV1
	}
	return defaultV2
}

// newSandbox is the request for a sandbox, of both generations.
type newSandbox struct {
	TemplateID      string            `json:"templateID"`
	Timeout         *int              `json:"timeout"`
	AutoPause       bool              `json:"autoPause"`
	AutoPauseMemory *bool             `json:"autoPauseMemory"`
	AutoResume      *enabled          `json:"autoResume"`
	Secure          *bool             `json:"secure"` // v1 only
	Internet        *bool             `json:"allow_internet_access"`
	Network         *networkConfig    `json:"network"`
	Metadata        map[string]string `json:"metadata"`
	EnvVars         map[string]string `json:"envVars"`
	MCP             json.RawMessage   `json:"mcp"`
	IAM             json.RawMessage   `json:"iam"`
	VolumeMounts    json.RawMessage   `json:"volumeMounts"`
}

type enabled struct {
	Enabled bool `json:"enabled"`
}

// isNothing reports whether an option that cannot be honoured asks for nothing.
func isNothing(v json.RawMessage) bool {
	switch string(bytes.TrimSpace(v)) {
	case "", "null", "{}", "[]", `{"tokens":{}}`, `""`:
		return true
	}
	return false
}

// check refuses what cannot be honoured.
func (req *newSandbox) check(g generation) error {
	switch {
	case !isNothing(req.MCP):
		return missing("mcp", "snapshots have no MCP gateway; run a server in the sandbox and use its port")
	case !isNothing(req.IAM):
		return missing("iam", "there is nobody to issue tokens for workloads; pass envs")
	case !isNothing(req.VolumeMounts):
		return missing("volumeMounts", "sandboxes share no disks; copy files, or fork a sandbox that has them")
	case req.AutoPauseMemory != nil && !*req.AutoPauseMemory:
		return missing("autoPauseMemory: false", "a pause always keeps memory")
	case g == v2 && req.Secure != nil && !*req.Secure:
		return invalid("secure: sandboxes of this route are always secured")
	}
	return nil
}

// plan makes a request into what the domain and the API need to know.
func (a *API) plan(req *newSandbox, g generation) (sandbox.ForkSpec, front.Record, error) {
	var spec sandbox.ForkSpec
	var rec front.Record
	if err := req.check(g); err != nil {
		return spec, rec, err
	}
	life, err := seconds("timeout", req.Timeout, g.lifetime())
	if err != nil {
		return spec, rec, err
	}
	from, err := a.store.Resolve(req.TemplateID)
	if err != nil {
		return spec, rec, err
	}
	rec = front.Record{
		Template: cmp.Or(from.Name, from.Snapshot), Internet: req.Internet, User: from.User, Workdir: from.Workdir,
	}
	if err := req.Network.apply(&rec); err != nil {
		return spec, rec, err
	}
	secure(&rec, g == v2 || req.Secure != nil && *req.Secure)
	spec = sandbox.ForkSpec{
		Tag: from.Snapshot, N: 1, Lifetime: duration(life), Metadata: req.Metadata, Env: maps.Clone(from.Env),
		OnTimeout: sandbox.KillOnTimeout, AutoResume: req.AutoResume != nil && req.AutoResume.Enabled,
	}
	if req.AutoPause {
		spec.OnTimeout = sandbox.PauseOnTimeout
	}
	if spec.Env == nil {
		spec.Env = make(map[string]string, len(req.EnvVars))
	}
	maps.Copy(spec.Env, req.EnvVars)
	spec.Front = rec.Encode()
	return spec, rec, nil
}

// secure gives a sandbox the tokens that it needs.
func secure(rec *front.Record, envd bool) {
	rec.EnvdToken, rec.TrafficToken = "", ""
	if envd {
		rec.EnvdToken = front.NewToken()
	}
	if rec.Private {
		rec.TrafficToken = front.NewToken()
	}
}

func (a *API) create(g generation) route {
	return func(w http.ResponseWriter, r *http.Request) error {
		var req newSandbox
		if _, err := jsonbody.Read(w, r, maxLargeBody, &req); err != nil {
			return err
		}
		spec, rec, err := a.plan(&req, g)
		if err != nil {
			return err
		}
		made, err := a.m.Fork(r.Context(), spec)
		if err != nil {
			return err
		}
		if made[0].Err != nil {
			return made[0].Err
		}
		info := made[0].Sandbox
		a.journal.note(info.ID, levelInfo, "created from "+rec.Template, "snapshot", info.SnapshotTag)
		if asksForNetwork(&rec) {
			a.journal.note(info.ID, levelWarn, noNetwork)
		}
		answer(w, http.StatusCreated, a.sandbox(r, info, rec))
		if r.Context().Err() != nil {
			a.m.Kill(info.ID) // nobody knows of it
		}
		return nil
	}
}

// far stands for the end of a sandbox that has none: clients need a date.
var far = time.Date(2999, time.December, 31, 23, 59, 59, 0, time.UTC)

// sandboxJSON is a sandbox as its creator gets it.
type sandboxJSON struct {
	TemplateID   string  `json:"templateID"`
	Alias        string  `json:"alias,omitempty"`
	SandboxID    string  `json:"sandboxID"`
	ClientID     string  `json:"clientID"`
	EnvdVersion  string  `json:"envdVersion"`
	EnvdToken    string  `json:"envdAccessToken,omitempty"`
	TrafficToken *string `json:"trafficAccessToken"`
	Domain       *string `json:"domain"`
}

// clientID is what older clients put behind a sandbox's id.
const clientID = "forkd"

func (a *API) sandbox(r *http.Request, info *sandbox.Info, rec front.Record) sandboxJSON {
	out := sandboxJSON{
		TemplateID: info.SnapshotTag, Alias: rec.Template, SandboxID: info.ID, ClientID: clientID,
		EnvdVersion: a.envd, EnvdToken: rec.EnvdToken, Domain: a.domainOf(r),
	}
	if rec.TrafficToken != "" {
		out.TrafficToken = &rec.TrafficToken
	}
	return out
}
