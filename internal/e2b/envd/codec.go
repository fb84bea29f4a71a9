package envd

import (
	"encoding/base64"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "github.com/forkd-dev/forkd/internal/e2b/envd/rpc/processpb"
)

// jsonCodec is JSON as Connect has it, with a short way for output: that is nearly
// all that is ever sent, and the general way makes three bytes of garbage of each.
type jsonCodec struct{}

func (jsonCodec) Name() string { return "json" }

func (c jsonCodec) Marshal(message any) ([]byte, error) { return c.MarshalAppend(nil, message) }

// MarshalAppend lets Connect use its buffers again.
func (jsonCodec) MarshalAppend(to []byte, message any) ([]byte, error) {
	var event *pb.ProcessEvent
	switch m := message.(type) {
	case *pb.StartResponse:
		event = m.GetEvent()
	case *pb.ConnectResponse:
		event = m.GetEvent()
	}
	switch out := event.GetData().GetOutput().(type) {
	case *pb.ProcessEvent_DataEvent_Stdout:
		return appendOutput(to, "stdout", out.Stdout), nil
	case *pb.ProcessEvent_DataEvent_Stderr:
		return appendOutput(to, "stderr", out.Stderr), nil
	case *pb.ProcessEvent_DataEvent_Pty:
		return appendOutput(to, "pty", out.Pty), nil
	}
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is not a message", message)
	}
	return protojson.MarshalOptions{}.MarshalAppend(to, m)
}

func appendOutput(to []byte, field string, data []byte) []byte {
	to = append(to, `{"event":{"data":{"`...)
	to = append(to, field...)
	to = append(to, `":"`...)
	to = base64.StdEncoding.AppendEncode(to, data)
	return append(to, `"}}}`...)
}

// Unmarshal skips members that it does not know: newer SDKs may have more.
func (jsonCodec) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is not a message", message)
	}
	if len(data) == 0 {
		return errors.New("no bytes are not a JSON object")
	}
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(data, m)
}
