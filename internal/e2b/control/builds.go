package control

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/forkd-dev/forkd/internal/e2b/template"
	"github.com/forkd-dev/forkd/internal/jsonbody"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// baseImages are the container images that stand for E2B's own templates, and the
// names of those.
var baseImages = map[string]string{"e2bdev/base": "base", "e2bdev/code-interpreter": "code-interpreter-v1"}

// requestBuild makes a build that waits to be told what to build.
func (a *API) requestBuild(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Name        string   `json:"name"`
		Alias       string   `json:"alias"`
		Tags        []string `json:"tags"`
		CPUCount    int      `json:"cpuCount"`
		MemoryMB    int      `json:"memoryMB"`
		MinFreeDisk int      `json:"minFreeDiskMb"`
		TeamID      string   `json:"teamID"`
	}
	if _, err := jsonbody.Read(w, r, maxBody, &req); err != nil {
		return err
	}
	if req.Name == "" {
		req.Name = req.Alias
	}
	if req.Name == "" {
		return invalid("name: required")
	}
	name, tag, err := template.Parse(req.Name)
	if err != nil {
		return err
	}
	tags := req.Tags
	if strings.Contains(req.Name, ":") && !slices.Contains(tags, tag) {
		tags = append(tags, tag)
	}
	status, err := a.builder.Request(name, tags, template.Size{VCPUs: req.CPUCount, MemoryMiB: req.MemoryMB, DiskMiB: req.MinFreeDisk})
	if err != nil {
		return err
	}
	answer(w, http.StatusAccepted, struct {
		TemplateID string   `json:"templateID"`
		BuildID    string   `json:"buildID"`
		Public     bool     `json:"public"`
		Names      []string `json:"names"`
		Tags       []string `json:"tags"`
		Aliases    []string `json:"aliases"`
	}{TemplateID: name, BuildID: status.ID, Names: []string{name}, Tags: orNone(tags), Aliases: []string{name}})
	return nil
}

// startBuild tells a build what to build.
func (a *API) startBuild(w http.ResponseWriter, r *http.Request) error {
	type step struct {
		Type      string   `json:"type"`
		Args      []string `json:"args"`
		FilesHash string   `json:"filesHash"`
		Force     *bool    `json:"force"` // every build runs every step
		// How the client packs and sends the files is its own affair.
		ForceUpload     *bool `json:"forceUpload"`
		ResolveSymlinks *bool `json:"resolveSymlinks"`
		Gzip            *bool `json:"gzip"`
	}
	var req struct {
		FromImage    string          `json:"fromImage"`
		FromTemplate string          `json:"fromTemplate"`
		Registry     json.RawMessage `json:"fromImageRegistry"`
		Force        bool            `json:"force"`
		Steps        []step          `json:"steps"`
		StartCmd     string          `json:"startCmd"`
		ReadyCmd     string          `json:"readyCmd"`
	}
	if _, err := jsonbody.Read(w, r, maxLargeBody, &req); err != nil {
		return err
	}
	spec := template.Spec{From: req.FromTemplate, StartCmd: req.StartCmd, ReadyCmd: req.ReadyCmd}
	if (req.FromImage == "") == (req.FromTemplate == "") {
		return invalid("exactly one of fromImage and fromTemplate is required")
	}
	if req.FromImage != "" {
		base, ok := baseImages[strings.TrimSuffix(req.FromImage, ":latest")]
		if !ok || !isNothing(req.Registry) {
			return missing(fmt.Sprintf("a build from the container image %q", clip(req.FromImage)),
				"its snapshots are made of Debian packages; make one with `forkd snapshot --tag NAME --packages …` and build from that: fromTemplate(\"NAME\")")
		}
		spec.From = base
	}
	for _, s := range req.Steps {
		spec.Steps = append(spec.Steps, template.Step{Type: s.Type, Args: s.Args, Hash: s.FilesHash})
	}
	_, base, err := a.find(spec.From)
	if err != nil {
		return err
	}
	spec.Base = template.Size{VCPUs: base.VCPUs, MemoryMiB: base.MemoryMiB, DiskMiB: base.DiskMiB}
	if err := a.builder.Start(r.PathValue("template"), r.PathValue("build"), spec); err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// logLine is a line of a build's log.
type logLine struct {
	Timestamp time.Time `json:"timestamp"`
	Level     string    `json:"level"`
	Message   string    `json:"message"`
	Step      string    `json:"step,omitempty"`
}

func logLines(list []template.Entry) []logLine {
	out := make([]logLine, len(list))
	for i, e := range list {
		out[i] = logLine{e.Time.UTC(), e.Level, e.Message, e.Step}
	}
	return out
}

// atLeast leaves out what is below a level.
func atLeast(list []template.Entry, level string) []template.Entry {
	least := slices.Index(levels, level)
	return slices.DeleteFunc(list, func(e template.Entry) bool { return slices.Index(levels, e.Level) < least })
}

func (a *API) buildStatus(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	l, err := logQueryOf(q, "cursor")
	if err != nil {
		return err
	}
	offset := 0
	if text := q.Get("logsOffset"); text != "" {
		if offset, err = strconv.Atoi(text); err != nil || offset < 0 {
			return invalid("logsOffset: must be a whole number from 0 on, not %q", clip(text))
		}
	}
	id, build := r.PathValue("template"), r.PathValue("build")
	status, err := a.builder.Status(id, build)
	if err != nil {
		return err
	}
	lines := atLeast(a.builder.Log(id, build), l.level)
	lines = lines[min(offset, len(lines)):]
	lines = lines[:min(len(lines), l.limit)]
	type reason struct {
		Message    string    `json:"message"`
		Step       string    `json:"step,omitempty"`
		LogEntries []logLine `json:"logEntries"`
	}
	out := struct {
		TemplateID string    `json:"templateID"`
		BuildID    string    `json:"buildID"`
		Status     string    `json:"status"`
		Logs       []string  `json:"logs"`
		LogEntries []logLine `json:"logEntries"`
		Reason     *reason   `json:"reason,omitempty"`
	}{TemplateID: id, BuildID: build, Status: status.State, Logs: []string{}, LogEntries: logLines(lines)}
	if status.State == template.Failed {
		out.Reason = &reason{Message: status.Message, Step: status.Step, LogEntries: []logLine{}}
	}
	answer(w, http.StatusOK, out)
	return nil
}

func (a *API) buildLogs(w http.ResponseWriter, r *http.Request) error {
	l, err := logQueryOf(r.URL.Query(), "cursor")
	if err != nil {
		return err
	}
	id, build := r.PathValue("template"), r.PathValue("build")
	if _, err := a.builder.Status(id, build); err != nil {
		return err
	}
	lines := atLeast(a.builder.Log(id, build), l.level)
	if l.backward {
		slices.Reverse(lines)
	}
	lines = slices.DeleteFunc(lines, func(e template.Entry) bool {
		if l.backward {
			return !l.cursor.IsZero() && e.Time.After(l.cursor)
		}
		return e.Time.Before(l.cursor)
	})
	answer(w, http.StatusOK, struct {
		Logs []logLine `json:"logs"`
	}{logLines(lines[:min(len(lines), l.limit)])})
	return nil
}

// uploads signs addresses that files are put to: clients send no key there.
type uploads struct{ key [32]byte }

const uploadTime = time.Hour // that an address is good for

func newUploads() (u uploads) {
	rand.Read(u.key[:])
	return u
}

func (u *uploads) sign(hash string, until int64) string {
	mac := hmac.New(sha256.New, u.key[:])
	fmt.Fprintf(mac, "%s %d", hash, until)
	return hex.EncodeToString(mac.Sum(nil))
}

// Signed reports whether a request puts files to an address that was signed for
// it, so that it needs no key.
func (a *API) Signed(r *http.Request) bool {
	if r.Method != http.MethodPut {
		return false
	}
	parts := strings.Split(r.URL.Path, "/")
	if len(parts) != 5 || parts[1] != "templates" || parts[3] != "files" {
		return false
	}
	q := r.URL.Query()
	until, err := strconv.ParseInt(q.Get("until"), 10, 64)
	if err != nil || time.Now().Unix() > until {
		return false
	}
	return hmac.Equal([]byte(q.Get("signature")), []byte(a.uploads.sign(parts[4], until)))
}

// upload tells where to put files, and whether they are there already.
func (a *API) upload(w http.ResponseWriter, r *http.Request) error {
	name, hash := r.PathValue("template"), r.PathValue("hash")
	if !template.ValidHash(hash) {
		return invalid("malformed hash of files %q", clip(hash))
	}
	until := time.Now().Add(uploadTime).Unix()
	q := url.Values{"until": {strconv.FormatInt(until, 10)}, "signature": {a.uploads.sign(hash, until)}}
	answer(w, http.StatusCreated, struct {
		Present bool   `json:"present"`
		URL     string `json:"url"`
	}{
		Present: a.builder.HasFile(hash),
		URL:     baseURL(r) + "/templates/" + url.PathEscape(name) + "/files/" + hash + "?" + q.Encode(),
	})
	return nil
}

func (a *API) putFile(w http.ResponseWriter, r *http.Request) error {
	if err := a.builder.PutFile(r.PathValue("hash"), r.Body); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// asFault finds the domain's error in err.
func asFault(err error) (*sandbox.Error, bool) { return errors.AsType[*sandbox.Error](err) }
