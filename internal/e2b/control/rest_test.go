package control

import (
	"strings"
	"testing"
	"time"
)

// TestEveryRoute: each route that is documented answers, if only with why not.
func TestEveryRoute(t *testing.T) {
	for _, route := range []string{
		"GET /health", "GET /teams", "GET /teams/x/metrics", "GET /teams/x/metrics/max",
		"GET /sandboxes", "POST /sandboxes", "GET /sandboxes/x", "DELETE /sandboxes/x", "POST /sandboxes/x/connect", "POST /sandboxes/x/fork",
		"GET /sandboxes/x/logs", "GET /sandboxes/x/metrics", "PUT /sandboxes/x/network", "POST /sandboxes/x/pause", "POST /sandboxes/x/refreshes",
		"POST /sandboxes/x/resume", "POST /sandboxes/x/snapshots", "POST /sandboxes/x/timeout", "GET /sandboxes/metrics",
		"GET /v2/sandboxes", "POST /v2/sandboxes", "POST /v2/sandboxes/x/connect", "POST /v2/sandboxes/x/fork", "GET /v2/sandboxes/x/logs",
		"GET /snapshots", "GET /templates", "GET /v2/templates", "POST /templates", "POST /v2/templates", "POST /v3/templates",
		"GET /templates/x", "POST /templates/x", "DELETE /templates/x", "PATCH /templates/x", "PATCH /v2/templates/x",
		"POST /templates/x/builds/y", "POST /v2/templates/x/builds/y", "GET /templates/x/builds/y/status", "GET /templates/x/builds/y/logs",
		"GET /templates/x/files/y", "GET /templates/x/tags", "GET /templates/aliases/x", "POST /templates/tags", "DELETE /templates/tags",
		"GET /secrets", "POST /secrets", "GET /secrets/x", "POST /secrets/x", "DELETE /secrets/x",
		"GET /volumes", "POST /volumes", "GET /volumes/x", "DELETE /volumes/x", "PUT /volumecontent/x/file",
		"GET /api-keys", "POST /access-tokens", "GET /nodes", "GET /nodes/x", "POST /admin/teams/x/sandboxes/kill",
	} {
		s := newSite(t)
		method, path, _ := strings.Cut(route, " ")
		resp, text := s.ask(t, method, path, "")
		if strings.Contains(text, "there is no route") || resp.StatusCode == 405 || resp.StatusCode == 500 {
			t.Errorf("%s: %d %s", route, resp.StatusCode, text)
		}
	}
}

func TestUnknownRoutes(t *testing.T) {
	s := newSite(t)
	s.want(t, 404, "GET", "/nothing", "", nil)
	s.want(t, 404, "GET", "/templates/x/parts", "", nil)
	resp := s.want(t, 405, "PATCH", "/v2/sandboxes", "", nil)
	if allow := resp.Header.Get("Allow"); !strings.Contains(allow, "POST") || !strings.Contains(allow, "GET") {
		t.Errorf("Allow: %q", allow)
	}
}

func TestMetrics(t *testing.T) {
	s := newSite(t)
	made := s.create(t, `{"templateID":"base"}`)
	var list []metric
	for query, n := range map[string]int{"": 1, "?start=1": 1, "?end=1": 0, "?start=4000000000": 0} {
		s.want(t, 200, "GET", "/sandboxes/"+made.SandboxID+"/metrics"+query, "", &list)
		if len(list) != n || n == 1 && (list[0].CPUUsedPct != 12.5 || list[0].MemTotal != 512<<20 || list[0].TimestampUnix == 0) {
			t.Errorf("%q: %+v", query, list)
		}
	}
	s.want(t, 400, "GET", "/sandboxes/"+made.SandboxID+"/metrics?start=-1", "", nil)
	other := s.create(t, `{"templateID":"base"}`)
	var many struct{ Sandboxes map[string]metric }
	s.want(t, 200, "GET", "/sandboxes/metrics?sandbox_ids="+made.SandboxID+",sbnone,"+other.SandboxID, "", &many)
	if len(many.Sandboxes) != 2 || many.Sandboxes[other.SandboxID].CPUCount != 1 {
		t.Errorf("many: %+v", many)
	}
	s.want(t, 400, "GET", "/sandboxes/metrics", "", nil)
}

func TestLogs(t *testing.T) {
	s := newSite(t)
	made := s.create(t, `{"templateID":"base","network":{"allowOut":["1.1.1.1"]}}`)
	at := "/sandboxes/" + made.SandboxID
	s.want(t, 204, "POST", at+"/pause", "", nil)
	s.want(t, 201, "POST", at+"/connect", `{"timeout":5}`, nil)
	messages := func(query string) (out []string) {
		var got struct{ Logs []entry }
		s.want(t, 200, "GET", "/v2"+at+"/logs"+query, "", &got)
		for _, e := range got.Logs {
			out = append(out, strings.Fields(e.Message)[0])
		}
		return out
	}
	for query, want := range map[string]string{
		"": "created sandboxes paused resumed", "?direction=backward": "resumed paused sandboxes created", "?level=warn": "sandboxes",
		"?search=paus": "paused", "?limit=1": "created", "?limit=0": "", "?cursor=4000000000000": "", "?direction=backward&cursor=1": "",
	} {
		if got := strings.Join(messages(query), " "); got != want {
			t.Errorf("%q: %q, want %q", query, got, want)
		}
	}
	for _, query := range []string{"?level=loud", "?direction=up", "?limit=-1", "?cursor=x"} {
		s.want(t, 400, "GET", "/v2"+at+"/logs"+query, "", nil)
	}
	var old struct {
		Logs       []struct{ Line string }
		LogEntries []entry
	}
	s.want(t, 200, "GET", at+"/logs", "", &old)
	if len(old.Logs) != 4 || len(old.LogEntries) != 4 || old.Logs[0].Line != "info created from base" {
		t.Errorf("v1: %+v", old)
	}
	s.open(t) // as another daemon
	s.boxes[made.SandboxID].PausedAt = time.Now()
	if got := strings.Join(messages(""), " "); got != "created paused" {
		t.Errorf("after a restart: %q", got)
	}
}

func TestSnapshots(t *testing.T) {
	s := newSite(t)
	made := s.create(t, `{"templateID":"base","envVars":{"KEY":"v"}}`)
	at := "/sandboxes/" + made.SandboxID + "/snapshots"
	take := func(body string) (snap snapshotJSON) {
		t.Helper()
		s.want(t, 201, "POST", at, body, &snap)
		return snap
	}
	unnamed, named := take(""), take(`{"name":"save"}`)
	again := take(`{"name":"save"}`)
	if len(unnamed.Names) != 0 || named.SnapshotID != "save" || named.Names[0] != "save" || again.SnapshotID == "save" || again.Names[0] != "save" {
		t.Fatalf("took %+v, %+v and %+v", unnamed, named, again)
	}
	s.want(t, 400, "POST", at, `{"name":"a b"}`, nil)
	s.want(t, 409, "POST", at, `{"name":"base"}`, nil)
	for query, n := range map[string]int{
		"": 3, "?sandboxID=" + made.SandboxID: 3, "?sandboxID=sbnone": 0, "?limit=2": 2, "?name=save": 1, "?name=none": 0,
	} {
		var list []snapshotJSON
		s.want(t, 200, "GET", "/snapshots"+query, "", &list)
		if len(list) != n {
			t.Errorf("%q: %+v", query, list)
		}
		if query == "?name=save" && list[0].SnapshotID != again.SnapshotID {
			t.Errorf("the name leads to %+v", list)
		}
	}
	// Sandboxes of a snapshot begin with what its source had; a name is the newest.
	for ref, tag := range map[string]string{unnamed.SnapshotID: unnamed.SnapshotID, "save": again.SnapshotID, "save:default": again.SnapshotID} {
		child := s.create(t, `{"templateID":"`+ref+`"}`)
		if child.TemplateID != tag || s.envs[child.SandboxID]["KEY"] != "v" {
			t.Errorf("%s: %+v with %v", ref, child, s.envs[child.SandboxID])
		}
	}
	// Deleting one whose sandboxes live takes effect at once, but not for them.
	s.want(t, 204, "DELETE", "/templates/"+unnamed.SnapshotID, "", nil)
	s.want(t, 404, "DELETE", "/templates/"+unnamed.SnapshotID, "", nil)
	s.want(t, 404, "POST", "/v2/sandboxes", `{"templateID":"`+unnamed.SnapshotID+`"}`, nil)
	var left []snapshotJSON
	s.want(t, 200, "GET", "/snapshots", "", &left)
	if len(left) != 2 || s.snapshots[unnamed.SnapshotID] == nil || len(s.Sandboxes()) != 4 {
		t.Errorf("left %+v, %v and %v", left, s.snapshots, s.Sandboxes())
	}
	s.open(t) // another daemon remembers
	for id := range s.boxes {
		s.want(t, 204, "DELETE", "/sandboxes/"+id, "", nil)
	}
	if s.snapshots[unnamed.SnapshotID] != nil || len(s.store.Doomed()) != 0 {
		t.Errorf("nothing comes from it any more: %v, %v", s.snapshots, s.store.Doomed())
	}
	s.want(t, 204, "DELETE", "/templates/save", "", nil)
	s.want(t, 404, "GET", "/templates/aliases/save", "", nil)
	s.want(t, 403, "DELETE", "/templates/base", "", nil)
}
