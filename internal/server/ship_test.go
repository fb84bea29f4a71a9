package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
	"github.com/forkd-dev/forkd/internal/jsonbody"
)

func TestPackAndUnpack(t *testing.T) {
	s := newSite(t, "")
	ctx := context.Background()
	pack, err := s.c.Pack(ctx, "pyagent")
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(pack)
	if err = errors.Join(err, pack.Close()); err != nil {
		t.Fatal(err)
	}
	if info, err := s.c.Unpack(ctx, strings.NewReader(string(data)), "copy"); err != nil || info.Tag != "copy" {
		t.Errorf("%+v %v", info, err)
	}
	if _, err := s.c.Unpack(ctx, strings.NewReader(string(data)), ""); !client.IsCode(err, api.ErrorCodeAlreadyExists) {
		t.Errorf("under its own tag: %v", err)
	}
	if _, err := s.c.Unpack(ctx, strings.NewReader(string(data)), "../x"); !client.IsCode(err, api.ErrorCodeInvalidArgument) {
		t.Errorf("a bad tag: %v", err)
	}
	if _, err := s.c.Pack(ctx, "nosuch"); !client.IsCode(err, api.ErrorCodeNotFound) {
		t.Errorf("of nothing: %v", err)
	}
	resp, _ := s.ask(t, "GET", "/v1/snapshots/pyagent/pack", "")
	if got := resp.Header.Get("Content-Disposition"); got != `attachment; filename="pyagent.forkd-snapshot.tar.zst"` {
		t.Errorf("disposition %s", got)
	}
	if got := s.tags(t); got != "copy pyagent" {
		t.Errorf("there are %s", got)
	}
}

// TestPackBreaksOff: half a pack does not look like a whole one.
func TestPackBreaksOff(t *testing.T) {
	s := newSite(t, "")
	ctx := context.Background()
	if _, err := s.c.CreateSnapshot(ctx, client.SnapshotRequest{Tag: "damaged"}, nil); err != nil {
		t.Fatal(err)
	}
	// Whether the headers got out before the end is up to the buffers between.
	pack, err := s.c.Pack(ctx, "damaged")
	if err == nil {
		_, err = io.ReadAll(pack)
		pack.Close()
	}
	if err == nil {
		t.Error("half a pack was read to its end")
	}
}

// TestUnpackOfOtherThings: whoever sends gigabytes of something else is told so
// and not cut off.
func TestUnpackOfOtherThings(t *testing.T) {
	s := newSite(t, "")
	_, err := s.c.Unpack(context.Background(), io.LimitReader(noise{}, 64<<20), "x")
	if !client.IsCode(err, api.ErrorCodeNotBootable) || !strings.Contains(err.Error(), "no snapshot pack") {
		t.Errorf("got %v", err)
	}
	req, err := http.NewRequest("POST", s.tcp+"/v1/snapshots/unpack", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", jsonbody.Type)
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	wantError(t, resp, string(text), 415, api.ErrorCodeUnsupportedMediaType, "application/json")
	if got := s.tags(t); got != "pyagent" {
		t.Errorf("there are %s", got)
	}
}

type noise struct{}

func (noise) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestPushAndPull(t *testing.T) {
	s := newSite(t, "")
	ctx := context.Background()
	var steps []string
	note := func(p client.Progress) { steps = append(steps, p.Step) }
	if info, err := s.c.Push(ctx, "pyagent", client.PushRequest{Reference: "owner/name:1"}, note); err != nil || info.Tag != "pyagent" {
		t.Fatalf("%+v %v", info, err)
	}
	if info, err := s.c.Pull(ctx, client.PullRequest{Reference: "owner/name:1", Tag: "copy"}, note); err != nil || info.Tag != "copy" {
		t.Fatalf("%+v %v", info, err)
	}
	if got := strings.Join(steps, " "); got != "send pack fetch unpack" {
		t.Errorf("steps %s", got)
	}
	if _, err := s.c.Pull(ctx, client.PullRequest{Reference: "owner/none", Tag: "x"}, nil); !client.IsCode(err, api.ErrorCodeNotFound) {
		t.Errorf("nothing: %v", err)
	}
	for body, says := range map[string]string{
		`{}`:                             "reference: required",
		`{"reference":5}`:                "reference: must be a string",
		`{"reference":"a\u0000b"}`:       "reference: holds a NUL byte",
		`{"reference":"x","tag":"a/b"}`:  "tag: malformed",
		`{"reference":"x","force":true}`: "unknown field",
		`{"reference":"` + strings.Repeat("x", 3000) + `"}`: "reference: over",
	} {
		resp, text := s.ask(t, "POST", "/v1/snapshots/pull", body)
		wantError(t, resp, text, 400, api.ErrorCodeInvalidArgument, says)
	}
	resp, text := s.ask(t, "POST", "/v1/snapshots/pyagent/push", `{}`)
	wantError(t, resp, text, 400, api.ErrorCodeInvalidArgument, "reference: required")
}
