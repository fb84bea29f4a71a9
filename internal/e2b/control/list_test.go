package control

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

func ids(list []listed) (ids []string) {
	for _, l := range list {
		ids = append(ids, l.SandboxID)
	}
	return ids
}

func TestList(t *testing.T) {
	s := newSite(t)
	var made []string
	start := time.Now().Add(-time.Hour).Truncate(time.Second)
	for i := range 5 {
		box := s.create(t, fmt.Sprintf(`{"templateID":"base","metadata":{"n":"%d","even":"%v","odd name":"a&b=c%%"}}`, i, i%2 == 0))
		s.boxes[box.SandboxID].CreatedAt = start.Add(time.Duration(i) * time.Minute)
		made = append(made, box.SandboxID)
	}
	s.want(t, 204, "POST", "/sandboxes/"+made[1]+"/pause", "", nil)
	s.boxes[made[4]].SnapshotTag = "other"
	reversed := slices.Clone(made)
	slices.Reverse(reversed)
	twice := func(k, v string) string {
		return url.QueryEscape(url.Values{url.PathEscape(k): {url.PathEscape(v)}}.Encode())
	}
	for query, want := range map[string][]string{
		"":                              reversed,
		"?order=asc":                    made,
		"?state=running":                {made[4], made[3], made[2], made[0]},
		"?state=paused":                 {made[1]},
		"?state=running,paused":         reversed,
		"?state=running&state=paused":   reversed,
		"?template=other":               {made[4]},
		"?template=base":                reversed,
		"?template=nothing":             nil,
		"?metadata=n%3D3":               {made[3]},
		"?metadata=n%3D3%26even%3Dtrue": nil,
		"?metadata=" + twice("odd name", "a&b=c%"):                                              reversed,
		"?metadata=" + twice("even", "true"):                                                    {made[4], made[2], made[0]},
		"?startedAfter=" + url.QueryEscape(start.Add(3*time.Minute).UTC().Format(time.RFC3339)): {made[4], made[3]},
	} {
		var list []listed
		resp := s.want(t, 200, "GET", "/v2/sandboxes"+query, "", &list)
		if !slices.Equal(ids(list), want) {
			t.Errorf("%s: %v, want %v", query, ids(list), want)
		}
		if total := resp.Header.Get("X-Total-Running"); (total == "") != (query == "?state=paused") {
			t.Errorf("%s: X-Total-Running %q", query, total)
		}
		if resp.Header.Get("X-Next-Token") != "" {
			t.Errorf("%s: there is another page", query)
		}
	}
	for _, query := range []string{"?state=dead", "?order=up", "?limit=0", "?limit=101", "?limit=x", "?nextToken=%21", "?startedAfter=now", "?metadata=%25zz"} {
		s.want(t, 400, "GET", "/v2/sandboxes"+query, "", nil)
	}
	var running []listed
	s.want(t, 200, "GET", "/sandboxes?metadata=even%3Dfalse", "", &running)
	if !slices.Equal(ids(running), []string{made[3]}) {
		t.Errorf("v1: %v", ids(running))
	}
}

// TestPages: each item is on one page, even if others come and go meanwhile.
func TestPages(t *testing.T) {
	for _, order := range []string{"asc", "desc"} {
		s := newSite(t)
		at := time.Now().Add(-time.Hour)
		var made []string
		for range 7 {
			box := s.create(t, `{"templateID":"base"}`)
			s.boxes[box.SandboxID].CreatedAt = at // all at once: the ids decide
			made = append(made, box.SandboxID)
		}
		if order == "desc" {
			slices.Reverse(made)
		}
		var got []string
		for token, n := "", 0; ; n++ {
			var list []listed
			resp := s.want(t, 200, "GET", "/v2/sandboxes?limit=3&order="+order+"&nextToken="+token, "", &list)
			got = append(got, ids(list)...)
			if n == 0 {
				delete(s.boxes, made[2]) // that the page ended with
			}
			if token = resp.Header.Get("x-next-token"); token == "" {
				break
			}
		}
		if !slices.Equal(got, made) {
			t.Errorf("%s: %v, want %v", order, got, made)
		}
	}
}

// FuzzQuery: whatever a client asks for, it gets an answer or a refusal.
func FuzzQuery(f *testing.F) {
	for _, q := range []string{"", "state=running", "limit=1&nextToken=MA", "metadata=a%3Db", "startedAfter=2026-01-01T00:00:00Z", "order=asc", "limit=-1", "%zz", "cursor=9223372036854775807&direction=backward"} {
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, query string) {
		q, _ := url.ParseQuery(query)
		_, err1 := filterOf(q)
		_, err2 := pageOf(q)
		_, err3 := logQueryOf(q, "cursor")
		_, err4 := unixTime(q, "start", time.Time{})
		for _, err := range []error{err1, err2, err3, err4} {
			if err == nil {
				continue
			}
			if e, ok := err.(*Error); !ok || e.Code != 400 || e.Message == "" {
				t.Errorf("refused with %#v", err)
			}
		}
	})
}

// FuzzCreate: whatever body comes, there is a plan or a refusal in words, and a
// plan keeps to the limits.
func FuzzCreate(f *testing.F) {
	for _, b := range []string{`{"templateID":"base"}`, `{"templateID":"a/b:c","timeout":5}`, `{"network":{"denyOut":["::/0"],"httpsPorts":[1]}}`, `{"mcp":[]}`, `{"iam":0}`} {
		f.Add(b)
	}
	s := &site{domain: newDomain(), dir: f.TempDir()}
	s.open(&testing.T{})
	f.Fuzz(func(t *testing.T, body string) {
		var req newSandbox
		if json.NewDecoder(strings.NewReader(body)).Decode(&req) != nil {
			return
		}
		for _, g := range []generation{v1, v2} {
			spec, rec, err := s.api.plan(&req, g)
			if err != nil {
				if e := describe(t.Context(), err); e.Code < 400 || e.Message == "" {
					t.Errorf("refused with %#v", err)
				}
				continue
			}
			if spec.Lifetime < time.Second || g == v2 && rec.EnvdToken == "" || rec.Private != (rec.TrafficToken != "") {
				t.Errorf("plan %+v %+v", spec, rec)
			}
		}
	})
}
