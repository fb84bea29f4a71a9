package envd

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "github.com/forkd-dev/forkd/internal/e2b/envd/rpc/processpb"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// TestCodec: the short way says what the long one does.
func TestCodec(t *testing.T) {
	var events []*pb.ProcessEvent
	for _, kind := range []sandbox.OutputKind{0, sandbox.Stdout, sandbox.Stderr, sandbox.Terminal} {
		for _, data := range [][]byte{nil, {}, []byte("a"), {0, 0xFF, '"', '\\', '\n'}, bytes.Repeat([]byte("xyz"), 1000)} {
			events = append(events, dataEvent(sandbox.Output{Kind: kind, Data: data}))
		}
	}
	events = append(events, nil, keepAlive, startEvent(sandbox.Process{PID: 1}), endEvent(sandbox.ProcessExit{Code: 1}))
	for _, e := range events {
		for _, m := range []proto.Message{&pb.StartResponse{Event: e}, &pb.ConnectResponse{Event: e}} {
			got, err := jsonCodec{}.MarshalAppend([]byte("ahead"), m)
			if err != nil {
				t.Fatal(err)
			}
			got, ok := bytes.CutPrefix(got, []byte("ahead"))
			back := proto.Clone(m)
			proto.Reset(back)
			if err := protojson.Unmarshal(got, back); err != nil || !ok || !proto.Equal(back, m) {
				t.Errorf("%v became %q: %v", m, got, err)
			}
			again := proto.Clone(m)
			if err := (jsonCodec{}).Unmarshal(got, again); err != nil || !proto.Equal(again, m) {
				t.Errorf("%q became %v: %v", got, again, err)
			}
		}
	}
	for _, bad := range []string{"", "{", "[]", `{"event":1}`} {
		if err := (jsonCodec{}).Unmarshal([]byte(bad), &pb.StartResponse{}); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
	if _, err := (jsonCodec{}).Marshal("text"); err == nil {
		t.Error("text was sent")
	}
}
