package control

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

// left is how long a sandbox lives on, rounded to seconds.
func (s *site) left(t *testing.T, id string) int {
	t.Helper()
	info, err := s.Sandbox(id)
	if err != nil {
		t.Fatal(err)
	}
	return int(time.Until(info.ExpiresAt).Round(time.Second).Seconds())
}

// TestConnect: connecting never moves the end of a sandbox nearer; only setting
// the timeout does.
func TestConnect(t *testing.T) {
	s := newSite(t)
	made := s.create(t, `{"templateID":"base","timeout":1800}`)
	at := "/sandboxes/" + made.SandboxID
	for _, c := range []struct {
		path, body string
		status     int
		left       int
	}{
		{at + "/connect", `{"timeout":60}`, 200, 1800},
		{"/v2" + at + "/connect", ``, 200, 1800},
		{"/v2" + at + "/connect", `{}`, 200, 1800},
		{at + "/connect", `{"timeout":3600}`, 200, 3600},
		{at + "/timeout", `{"timeout":60}`, 204, 60},
		{"/v2" + at + "/connect", ``, 200, 300},
		{at + "/timeout", `{"timeout":0}`, 400, 300},
		{at + "/timeout", `{}`, 400, 300},
		{at + "/connect", `{"timeout":-1}`, 400, 300},
		{at + "/connect", `{}`, 400, 300},
		{"/v2" + at + "/connect", `{"memory":false}`, 501, 300},
		{at + "/refreshes", `{"duration":20}`, 204, 300},
		{at + "/refreshes", `{"duration":600}`, 204, 600},
		{at + "/refreshes", ``, 204, 600},
	} {
		s.want(t, c.status, "POST", c.path, c.body, nil)
		if left := s.left(t, made.SandboxID); left != c.left {
			t.Errorf("%s %s: %d s are left, want %d", c.path, c.body, left, c.left)
		}
	}
	var again sandboxJSON
	s.want(t, 200, "POST", "/v2"+at+"/connect", "", &again)
	if again.EnvdToken != made.EnvdToken || again.SandboxID != made.SandboxID {
		t.Errorf("connected to %+v, made %+v", again, made)
	}
}

func TestPauseAndResume(t *testing.T) {
	s := newSite(t)
	made := s.create(t, `{"templateID":"base"}`)
	at := "/sandboxes/" + made.SandboxID
	s.want(t, 409, "POST", at+"/resume", `{"timeout":5}`, nil)
	s.want(t, 501, "POST", at+"/pause", `{"memory":false}`, nil)
	s.want(t, 400, "POST", at+"/pause", `{"memroy":true}`, nil)
	s.want(t, 204, "POST", at+"/pause", `{}`, nil)
	s.want(t, 409, "POST", at+"/pause", ``, nil)
	var told detail
	s.want(t, 200, "GET", at, "", &told)
	if told.State != sandbox.Paused {
		t.Errorf("state %s", told.State)
	}
	var none []metric
	s.want(t, 200, "GET", at+"/metrics", "", &none)
	if len(none) != 0 {
		t.Errorf("metrics of a paused sandbox: %v", none)
	}
	var back sandboxJSON
	s.want(t, 201, "POST", at+"/connect", `{"timeout":90}`, &back)
	if back.EnvdToken != made.EnvdToken || s.left(t, made.SandboxID) != 90 {
		t.Errorf("resumed %+v with %d s", back, s.left(t, made.SandboxID))
	}
	s.want(t, 200, "POST", at+"/connect", `{"timeout":90}`, nil)
	s.want(t, 204, "POST", at+"/pause", ``, nil)
	s.want(t, 400, "POST", at+"/resume", `{"timeout":5,"autoPause":true}`, nil)
	s.want(t, 201, "POST", at+"/resume", `{"timeout":5}`, nil)
	s.want(t, 204, "POST", at+"/pause", ``, nil)
	s.want(t, 204, "DELETE", at, "", nil)
	s.want(t, 404, "DELETE", at, "", nil)
}

// TestGone: of a sandbox that is not there, or has ended, nothing is known but why.
func TestGone(t *testing.T) {
	s := newSite(t)
	made := s.create(t, `{"templateID":"base"}`)
	s.boxes[made.SandboxID].State, s.boxes[made.SandboxID].Reason = sandbox.Crashed, "it fell"
	if _, text := s.ask(t, "GET", "/sandboxes/"+made.SandboxID, ""); !strings.Contains(text, "was not found: it fell") {
		t.Errorf("what is told of it is %s", text)
	}
	for _, id := range []string{"sbnone", made.SandboxID} {
		for _, c := range []struct{ method, path, body string }{
			{"GET", "/sandboxes/", ""}, {"POST", "/sandboxes//connect", `{"timeout":5}`}, {"POST", "/v2/sandboxes//connect", ""},
			{"POST", "/sandboxes//pause", ""}, {"POST", "/sandboxes//resume", ""}, {"POST", "/sandboxes//timeout", `{"timeout":5}`},
			{"POST", "/sandboxes//refreshes", ""}, {"POST", "/sandboxes//fork", ""}, {"POST", "/v2/sandboxes//fork", ""},
			{"POST", "/sandboxes//snapshots", ""}, {"PUT", "/sandboxes//network", "{}"}, {"GET", "/sandboxes//network", ""},
			{"GET", "/sandboxes//metrics", ""}, {"GET", "/sandboxes//logs", ""}, {"GET", "/v2/sandboxes//logs", ""},
		} {
			path := c.path + id
			if i := len("/sandboxes/"); c.path != "/sandboxes/" {
				if c.path[:3] == "/v2" {
					i += 3
				}
				path = c.path[:i] + id + c.path[i:]
			}
			s.want(t, http.StatusNotFound, c.method, path, c.body, nil)
		}
	}
	var list []listed
	s.want(t, 200, "GET", "/v2/sandboxes", "", &list)
	if len(list) != 0 {
		t.Errorf("listed %+v", list)
	}
}

// TestAdoption: a sandbox that was made otherwise gets a token when it is first
// connected to, and keeps it.
func TestAdoption(t *testing.T) {
	s := newSite(t)
	boxes, err := s.Fork(context.Background(), sandbox.ForkSpec{Tag: "pyagent", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	id := boxes[0].Sandbox.ID
	var first, second sandboxJSON
	s.want(t, 200, "POST", "/v2/sandboxes/"+id+"/connect", "", &first)
	s.want(t, 200, "POST", "/v2/sandboxes/"+id+"/connect", "", &second)
	if len(first.EnvdToken) != 64 || first != second && first.EnvdToken != second.EnvdToken || s.record(t, id).EnvdToken != first.EnvdToken {
		t.Errorf("first %+v, then %+v", first, second)
	}
}

// TestLate: of a sandbox whose process tells of it late, that is waited for, and what is told of it is not as if it
// had nothing. It can be killed all the same.
func TestLate(t *testing.T) {
	s := newSite(t)
	made := s.create(t, `{"templateID":"base","metadata":{"app":"desk"}}`)
	at, id := "/sandboxes/"+made.SandboxID, made.SandboxID
	s.untold[id] = false
	for _, c := range []struct{ method, path, body string }{
		{"GET", "", ""}, {"POST", "/connect", `{"timeout":5}`}, {"POST", "/fork", ""}, {"POST", "/snapshots", ""}, {"GET", "/network", ""},
	} {
		s.want(t, http.StatusGatewayTimeout, c.method, at+c.path, c.body, nil)
	}
	var back sandboxJSON
	s.untold[id] = true
	s.want(t, 200, "POST", at+"/connect", `{"timeout":5}`, &back)
	if back.EnvdToken != made.EnvdToken || back.Alias != made.Alias || s.record(t, id).EnvdToken != made.EnvdToken {
		t.Errorf("connected to %+v, which was made as %+v", back, made)
	}
	s.untold[id] = true
	var children []forkResult
	s.want(t, 201, "POST", at+"/fork", ``, &children)
	if info, err := s.Sandbox(children[0].Sandbox.SandboxID); err != nil || info.Metadata["app"] != "desk" {
		t.Errorf("its child is %+v, %v", info, err)
	}
	s.untold[id] = false
	s.want(t, 204, "DELETE", at, "", nil)
}

func TestFork(t *testing.T) {
	s := newSite(t)
	made := s.create(t, `{"templateID":"base","metadata":{"a":"b"},"autoPause":true,"network":{"allowPublicTraffic":false}}`)
	at := "/sandboxes/" + made.SandboxID
	for _, c := range []struct {
		path, body string
		n, left    int
	}{
		{at + "/fork", ``, 1, 15}, {"/v2" + at + "/fork", ``, 1, 300}, {"/v2" + at + "/fork", `{"count":3,"timeout":60}`, 3, 60},
	} {
		var results []forkResult
		s.want(t, 201, "POST", c.path, c.body, &results)
		if len(results) != c.n {
			t.Fatalf("%s %s: %d results", c.path, c.body, len(results))
		}
		tokens := map[string]bool{made.EnvdToken: true, *made.TrafficToken: true}
		for _, r := range results {
			if r.Error != nil || r.Sandbox == nil {
				t.Fatalf("%+v", r)
			}
			tokens[r.Sandbox.EnvdToken], tokens[*r.Sandbox.TrafficToken] = true, true
			info, err := s.Sandbox(r.Sandbox.SandboxID)
			if err != nil {
				t.Fatal(err)
			}
			rec := s.record(t, info.ID)
			if rec.EnvdToken != r.Sandbox.EnvdToken || !rec.Private || info.Metadata["a"] != "b" || info.OnTimeout != sandbox.PauseOnTimeout || s.left(t, info.ID) != c.left {
				t.Errorf("child %+v with %+v", info, rec)
			}
		}
		if len(tokens) != 2+2*c.n {
			t.Errorf("%d different tokens for a source and %d children", len(tokens), c.n)
		}
	}
	for _, body := range []string{`{"count":0}`, `{"count":101}`, `{"timeout":0}`, `[]`, `{"cuont":1}`} {
		s.want(t, 400, "POST", at+"/fork", body, nil)
	}
}

func TestNetwork(t *testing.T) {
	s := newSite(t)
	made := s.create(t, `{"templateID":"base","network":{"maskRequestHost":"app.test","allowOut":["1.1.1.1"]}}`)
	at := "/sandboxes/" + made.SandboxID
	s.want(t, 204, "PUT", at+"/network", `{"denyOut":["10.0.0.0/8"],"allow_internet_access":false}`, nil)
	rec := s.record(t, made.SandboxID)
	if string(rec.Network) != `{"denyOut":["10.0.0.0/8"],"maskRequestHost":"app.test"}` || rec.MaskHost != "app.test" || rec.Internet == nil || *rec.Internet {
		t.Errorf("remembered %+v %s", rec, rec.Network)
	}
	for body, status := range map[string]int{
		`{"rules":{"a.com":[{"transform":{"headers":{"a":"b"}}}]}}`: 501, `{"denyOut":["x"]}`: 400, `{"nope":1}`: 400, ``: 400,
	} {
		s.want(t, status, "PUT", at+"/network", body, nil)
	}
	var told struct{ Note string }
	s.want(t, 200, "GET", at+"/network", "", &told)
	if told.Note != noNetwork {
		t.Errorf("told %q", told.Note)
	}
}
