package control

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

type requested struct {
	TemplateID, BuildID string
	Tags                []string
}

type buildState struct {
	Status     string
	LogEntries []logLine
	Reason     *struct{ Message, Step string }
}

// build starts a build and waits for its end.
func (s *site) build(t *testing.T, name, spec string) (requested, buildState) {
	t.Helper()
	var req requested
	s.want(t, 202, "POST", "/v3/templates", name, &req)
	at := "/templates/" + req.TemplateID + "/builds/" + req.BuildID
	var state buildState
	s.want(t, 200, "GET", at+"/status", "", &state)
	if state.Status != "waiting" {
		t.Errorf("before it is started: %+v", state)
	}
	s.want(t, 202, "POST", "/v2"+at, spec, nil)
	s.want(t, 409, "POST", "/v2"+at, spec, nil)
	for range 1000 {
		s.want(t, 200, "GET", at+"/status", "", &state)
		if state.Status != "building" {
			return req, state
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("still %+v", state)
	return req, state
}

const hash = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

// TestBuild does what the SDK's builder does.
func TestBuild(t *testing.T) {
	s := newSite(t)
	var link struct {
		Present bool
		URL     string
	}
	s.want(t, 201, "GET", "/templates/app/files/"+hash, "", &link)
	if link.Present {
		t.Error("the files are there before they are put")
	}
	s.put(t, link.URL, "an archive", true)
	s.want(t, 201, "GET", "/templates/app/files/"+hash, "", &link)
	if !link.Present {
		t.Error("the files are not there")
	}
	req, state := s.build(t, `{"name":"app:v1","tags":["stable"],"cpuCount":2,"memoryMB":512}`, `{"fromImage":"e2bdev/base","force":false,"steps":[
		{"type":"RUN","args":["echo hi"],"force":false},
		{"type":"USER","args":["root"]},
		{"type":"ENV","args":["A","1","B","2"]},
		{"type":"WORKDIR","args":["/srv/app"]},
		{"type":"COPY","args":["src","lib/","","0644"],"filesHash":"`+hash+`","force":false,"forceUpload":true,"gzip":true},
		{"type":"RUN","args":["make","user"]}],"startCmd":"serve","readyCmd":"check"}`)
	if state.Status != "ready" {
		t.Fatalf("%+v %+v", state, state.Reason)
	}
	if req.TemplateID != "app" || strings.Join(req.Tags, " ") != "stable v1" {
		t.Errorf("requested %+v", req)
	}
	var ran []string
	for _, c := range s.ran {
		ran = append(ran, c.User+" "+c.Cwd+" "+c.Env["A"]+" "+strings.Join(c.Args[len(c.Args)-1:], ""))
	}
	want := []string{"user   echo hi", " /  root", " /  0644", "user /srv/app 1 make", "root /srv/app 1 check"}
	if len(ran) != len(want) {
		t.Fatalf("ran %q", ran)
	}
	for i := range want {
		if ran[i] != want[i] {
			t.Errorf("command %d: %q, want %q", i, ran[i], want[i])
		}
	}
	if copied := s.ran[2].Args[4:]; copied[1] != "src" || copied[2] != "/srv/app/lib/" || copied[3] != "root" || s.wrote[copied[0]] != "an archive" {
		t.Errorf("copied %q", copied)
	}
	if len(s.started) != 1 || s.started[0].Args[3] != "serve" || s.started[0].User != "root" || s.started[0].Cwd != "/srv/app" {
		t.Errorf("started %+v", s.started)
	}
	if len(s.Sandboxes()) != 0 {
		t.Errorf("the build left %+v", s.Sandboxes())
	}
	if !strings.Contains(state.LogEntries[0].Message, "cpuCount: 2 is not honoured") || state.LogEntries[0].Level != "warn" || state.LogEntries[1].Level == "warn" {
		t.Errorf("the log begins with %+v", state.LogEntries[0])
	}
	s.open(t) // another daemon knows it, too
	for _, ref := range []string{"app:v1", "app:stable"} {
		made := s.create(t, `{"templateID":"`+ref+`","envVars":{"B":"3"}}`)
		rec := s.record(t, made.SandboxID)
		if env := s.envs[made.SandboxID]; env["A"] != "1" || env["B"] != "3" || rec.User != "root" || rec.Workdir != "/srv/app" {
			t.Errorf("%s: %v %+v", ref, env, rec)
		}
	}
	s.want(t, 404, "POST", "/v2/sandboxes", `{"templateID":"app"}`, nil) // it has no default
	s.want(t, 200, "GET", "/templates/aliases/app", "", nil)
	s.want(t, 200, "GET", "/templates/app/builds/"+req.BuildID+"/status", "", &state)
	if state.Status != "ready" {
		t.Errorf("another daemon says %q", state.Status)
	}
}

// put puts files to an address that was signed, or was not.
func (s *site) put(t *testing.T, at, body string, signed bool) {
	t.Helper()
	r := httptest.NewRequest("PUT", at, strings.NewReader(body))
	if s.api.Signed(r) != signed {
		t.Fatalf("%s: signed is %v", at, !signed)
	}
	if !signed {
		return
	}
	w := httptest.NewRecorder()
	s.api.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Fatalf("PUT %s: %d %s", at, w.Code, w.Body)
	}
}

func TestSignedUploads(t *testing.T) {
	s := newSite(t)
	var link struct{ URL string }
	s.want(t, 201, "GET", "/templates/app/files/"+hash, "", &link)
	s.want(t, 400, "GET", "/templates/app/files/..%2Fx", "", nil)
	u, err := url.Parse(link.URL)
	if err != nil {
		t.Fatal(err)
	}
	s.put(t, link.URL, "x", true)
	q := u.Query()
	for _, bad := range []string{
		strings.Replace(link.URL, hash, strings.Repeat("0", 64), 1), u.Scheme + "://" + u.Host + u.Path,
		strings.Replace(link.URL, q.Get("until"), "9999999999", 1), strings.Replace(link.URL, q.Get("signature"), "00", 1),
	} {
		s.put(t, bad, "x", false)
	}
}

func TestBuildFails(t *testing.T) {
	s := newSite(t)
	s.exit = func(cmd sandbox.Command) int {
		if strings.Contains(cmd.Args[len(cmd.Args)-1], "fail") {
			return 3
		}
		return 0
	}
	for spec, want := range map[string][2]string{
		`{"fromTemplate":"base","steps":[{"type":"RUN","args":["true"]},{"type":"RUN","args":["fail"]}]}`: {"2", "RUN: exit status 3: it is broken"},
		`{"fromTemplate":"pyagent","steps":[{"type":"USER","args":["nobody-there"]}]}`:                    {"1", "nobody-there"},
	} {
		_, state := s.build(t, `{"name":"bad"}`, spec)
		if state.Status != "error" || state.Reason.Step != want[0] || !strings.Contains(state.Reason.Message, want[1]) {
			t.Errorf("%s: %+v %+v", spec, state, state.Reason)
		}
	}
	if len(s.Sandboxes()) != 0 || len(s.snapshots) != 1 {
		t.Errorf("left %v and %v", s.Sandboxes(), s.snapshots)
	}
	var req requested
	s.want(t, 202, "POST", "/v3/templates", `{"name":"bad"}`, &req)
	at := "/v2/templates/bad/builds/" + req.BuildID
	for spec, status := range map[string]int{
		`{}`: 400, `{"fromImage":"a","fromTemplate":"b"}`: 400, `{"fromImage":"python:3"}`: 501, `{"fromTemplate":"none"}`: 404,
		`{"fromImage":"e2bdev/base","fromImageRegistry":{"type":"registry","username":"a","password":"b"}}`: 501,
		`{"fromTemplate":"base","steps":[{"type":"NOP"}]}`:                                                  400, `{"fromTemplate":"base","steps":[{"type":"RUN","args":[]}]}`: 400,
		`{"fromTemplate":"base","steps":[{"type":"COPY","args":["a","b"],"filesHash":"` + hash + `"}]}`: 400,
		`{"fromTemplate":"base","steps":[{"type":"ENV","args":["A"]}]}`:                                 400,
		`{"fromTemplate":"base","steps":[{"type":"RUN","args":["a\u0000b"]}]}`:                          400,
	} {
		s.want(t, status, "POST", at, spec, nil)
	}
	s.want(t, 404, "POST", "/v2/templates/bad/builds/none", `{"fromTemplate":"base"}`, nil)
	for body, status := range map[string]int{`{}`: 400, `{"name":"a b"}`: 400, `{"name":"base"}`: 409, `{"name":"a","tags":["b c"]}`: 400} {
		s.want(t, status, "POST", "/v3/templates", body, nil)
	}
}

func TestTemplatesAndTags(t *testing.T) {
	s := newSite(t)
	req, state := s.build(t, `{"name":"app"}`, `{"fromTemplate":"base"}`)
	if state.Status != "ready" {
		t.Fatalf("%+v", state)
	}
	var list []templateJSON
	s.want(t, 200, "GET", "/templates", "", &list)
	if len(list) != 2 || list[0].TemplateID != "app" || list[0].BuildID != req.BuildID || strings.Join(list[1].Names, " ") != "base code-interpreter-v1 pyagent" {
		t.Errorf("templates: %+v", list)
	}
	resp := s.want(t, 200, "GET", "/v2/templates?limit=1", "", &list)
	if len(list) != 1 || resp.Header.Get("X-Next-Token") == "" {
		t.Errorf("a page: %+v", list)
	}
	type tag struct{ Tag, BuildID string }
	tags := func(ref string) (list []tag) {
		t.Helper()
		s.want(t, 200, "GET", "/templates/"+ref+"/tags", "", &list)
		return list
	}
	if got := tags("app"); len(got) != 1 || got[0] != (tag{"default", req.BuildID}) {
		t.Errorf("tags: %+v", got)
	}
	var assigned struct {
		BuildID string
		Tags    []string
	}
	s.want(t, 201, "POST", "/templates/tags", `{"target":"app","tags":["v1","stable"]}`, &assigned)
	if assigned.BuildID != req.BuildID || len(tags("app")) != 3 {
		t.Errorf("assigned %+v: %+v", assigned, tags("app"))
	}
	s.want(t, 204, "DELETE", "/templates/tags", `{"name":"app","tags":["v1"]}`, nil)
	s.want(t, 404, "DELETE", "/templates/tags", `{"name":"app","tags":["v1"]}`, nil)
	s.want(t, 201, "POST", "/v2/sandboxes", `{"templateID":"app:stable"}`, nil)
	s.want(t, 404, "POST", "/v2/sandboxes", `{"templateID":"app:v1"}`, nil)
	if got := tags("pyagent"); len(got) != 1 {
		t.Errorf("tags of a snapshot: %+v", got)
	}
	s.want(t, 201, "POST", "/templates/tags", `{"target":"pyagent","tags":["old"]}`, nil)
	s.want(t, 201, "POST", "/v2/sandboxes", `{"templateID":"pyagent:old"}`, nil)
	s.want(t, 201, "POST", "/v2/sandboxes", `{"templateID":"pyagent"}`, nil)
	for body, status := range map[string]int{
		`{"target":"none","tags":["a"]}`: 404, `{"target":"app","tags":[]}`: 400, `{"target":"app","tags":["a b"]}`: 400, `{"target":"base","tags":["a"]}`: 409,
	} {
		s.want(t, status, "POST", "/templates/tags", body, nil)
	}
	var one struct {
		TemplateID string
		Names      []string
		Builds     []buildJSON
	}
	for ref, name := range map[string]string{"app": "app", "base": "base", "pyagent": "pyagent"} {
		s.want(t, 200, "GET", "/templates/"+ref, "", &one)
		if one.TemplateID != name || len(one.Builds) != 1 || one.Builds[0].MemoryMB != 512 || one.Builds[0].Status != "ready" {
			t.Errorf("%s: %+v", ref, one)
		}
	}
	s.want(t, 404, "GET", "/templates/none", "", nil)
	s.want(t, 200, "GET", "/templates/aliases/base", "", nil)
	s.want(t, 200, "GET", "/templates/aliases/team%2Fapp", "", nil)
	s.want(t, 404, "GET", "/templates/aliases/none", "", nil)
	s.want(t, 200, "PATCH", "/v2/templates/app", `{"public":false}`, nil)
	s.want(t, 501, "PATCH", "/v2/templates/app", `{"public":true}`, nil)
}
