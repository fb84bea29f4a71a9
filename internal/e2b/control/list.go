package control

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/forkd-dev/forkd/internal/e2b/front"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// listed is a sandbox in a list.
type listed struct {
	TemplateID   string            `json:"templateID"`
	Alias        string            `json:"alias,omitempty"`
	SandboxID    string            `json:"sandboxID"`
	ClientID     string            `json:"clientID"`
	StartedAt    time.Time         `json:"startedAt"`
	EndAt        time.Time         `json:"endAt"`
	CPUCount     int               `json:"cpuCount"`
	MemoryMB     int               `json:"memoryMB"`
	DiskSizeMB   int               `json:"diskSizeMB"`
	Metadata     map[string]string `json:"metadata"`
	State        sandbox.State     `json:"state"`
	EnvdVersion  string            `json:"envdVersion"`
	VolumeMounts []struct{}        `json:"volumeMounts"`
}

// detail is a sandbox by itself.
type detail struct {
	listed
	EnvdToken string          `json:"envdAccessToken,omitempty"`
	Domain    *string         `json:"domain"`
	Internet  *bool           `json:"allowInternetAccess"`
	Network   json.RawMessage `json:"network,omitempty"`
	Lifecycle lifecycle       `json:"lifecycle"`
}

type lifecycle struct {
	AutoResume bool                  `json:"autoResume"`
	OnTimeout  sandbox.TimeoutAction `json:"onTimeout"`
}

func (a *API) listing(info *sandbox.Info, rec *front.Record) listed {
	end := info.ExpiresAt
	if end.IsZero() && !info.PausedAt.IsZero() {
		end = info.PausedAt
	}
	if end.IsZero() {
		end = far
	}
	out := listed{
		TemplateID: info.SnapshotTag, Alias: rec.Template, SandboxID: info.ID, ClientID: clientID,
		StartedAt: info.CreatedAt.UTC(), EndAt: end.UTC(),
		CPUCount: info.VCPUs, MemoryMB: info.MemoryMiB, DiskSizeMB: info.DiskMiB,
		Metadata: info.Metadata, State: info.State, EnvdVersion: a.envd, VolumeMounts: []struct{}{},
	}
	if info.Limits.MemoryMiB > 0 {
		out.MemoryMB = min(out.MemoryMB, info.Limits.MemoryMiB)
	}
	if out.Metadata == nil {
		out.Metadata = map[string]string{}
	}
	return out
}

func (a *API) info(w http.ResponseWriter, r *http.Request) error {
	info, rec, err := a.live(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, detail{
		listed: a.listing(info, &rec), EnvdToken: rec.EnvdToken, Domain: a.domainOf(r),
		Internet: rec.Internet, Network: rec.Network,
		Lifecycle: lifecycle{info.AutoResume, cmp.Or(info.OnTimeout, sandbox.KillOnTimeout)},
	})
	return nil
}

// filter says which sandboxes to list.
type filter struct {
	states   []sandbox.State
	metadata map[string]string
	after    time.Time
	template string
}

// all returns the sandboxes that a filter lets through.
func (a *API) all(f filter) []listed {
	list := []listed{}
	infos := a.m.Sandboxes()
	for i := range infos {
		info := &infos[i]
		if !slices.Contains(f.states, info.State) || info.CreatedAt.Before(f.after) {
			continue
		}
		if !has(info.Metadata, f.metadata) {
			continue
		}
		rec, err := front.Decode(info.Front)
		if err != nil || rec.Hidden {
			continue
		}
		if f.template != "" && f.template != info.SnapshotTag && f.template != rec.Template {
			continue
		}
		list = append(list, a.listing(info, &rec))
	}
	return list
}

func has(metadata, wanted map[string]string) bool {
	for k, v := range wanted {
		if got, ok := metadata[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// listV1 lists the running sandboxes, without pages.
func (a *API) listV1(w http.ResponseWriter, r *http.Request) error {
	f := filter{states: []sandbox.State{sandbox.Running}}
	var err error
	if f.metadata, err = wantedMetadata(r.URL.Query().Get("metadata")); err != nil {
		return err
	}
	answer(w, http.StatusOK, turn(w, page{down: true}, a.all(f), listedKey))
	return nil
}

func (a *API) list(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	f, err := filterOf(q)
	if err != nil {
		return err
	}
	p, err := pageOf(q)
	if err != nil {
		return err
	}
	list := a.all(f)
	if slices.Contains(f.states, sandbox.Running) {
		running := 0
		for _, l := range list {
			if l.State == sandbox.Running {
				running++
			}
		}
		w.Header().Set("X-Total-Running", strconv.Itoa(running))
	}
	answer(w, http.StatusOK, turn(w, p, list, listedKey))
	return nil
}

func listedKey(l listed) string { return key(l.StartedAt, l.SandboxID) }

func filterOf(q url.Values) (filter, error) {
	f := filter{template: q.Get("template")}
	for _, text := range q["state"] {
		for s := range strings.SplitSeq(text, ",") {
			state := sandbox.State(strings.TrimSpace(s))
			if state != sandbox.Running && state != sandbox.Paused {
				return f, invalid("state: must be running or paused, not %q", clip(s))
			}
			f.states = append(f.states, state)
		}
	}
	if f.states == nil {
		f.states = []sandbox.State{sandbox.Running, sandbox.Paused}
	}
	if text := q.Get("startedAfter"); text != "" {
		after, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return f, invalid("startedAfter: must be a time as in RFC 3339, not %q", clip(text))
		}
		f.after = after
	}
	var err error
	f.metadata, err = wantedMetadata(q.Get("metadata"))
	return f, err
}

// wantedMetadata parses the filter "k=v&k=v", in which clients have escaped names
// and values twice.
func wantedMetadata(text string) (map[string]string, error) {
	pairs, err := url.ParseQuery(text)
	if err != nil {
		return nil, invalid("metadata: must be name=value pairs with & between them: %v", err)
	}
	wanted := make(map[string]string, len(pairs))
	for k, v := range pairs {
		wanted[unescape(k)] = unescape(v[0])
	}
	return wanted, nil
}

// unescape leaves what is not escaped as it is.
func unescape(s string) string {
	if plain, err := url.PathUnescape(s); err == nil {
		return plain
	}
	return s
}
