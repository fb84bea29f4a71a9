package front

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestRecord(t *testing.T) {
	yes := true
	for _, want := range []Record{
		{Version: version},
		{Version: version, Template: "base", EnvdToken: "a", TrafficToken: "b", Private: true, MaskHost: "x:1", Network: json.RawMessage(`{"a":1}`), Internet: &yes, HTTPSPorts: []int{1}, User: "root", Workdir: "/w", Hidden: true},
	} {
		if got, err := Decode(want.Encode()); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v came back as %+v %v", want, got, err)
		}
	}
	if r, err := Decode(nil); err != nil || !reflect.DeepEqual(r, Record{}) {
		t.Errorf("nothing is %+v %v", r, err)
	}
	for _, bad := range []string{`{}`, `{"version":2}`, `[]`, `{`, `{"version":1,"envd_token":5}`} {
		if _, err := Decode(json.RawMessage(bad)); err == nil {
			t.Errorf("%s was read", bad)
		}
	}
}

// FuzzDecode: what is read can be kept again.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"version":1,"template":"base","network":{"denyOut":["::/0"]}}`))
	f.Add([]byte(`{"version":1,"network":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Decode(b)
		if err != nil {
			return
		}
		if _, err := Decode(r.Encode()); err != nil {
			t.Errorf("%s: %v", b, err)
		}
	})
}

func TestSignature(t *testing.T) {
	// sha256("/a:read:user:token") and sha256("/a:read::token:5"), computed elsewhere.
	for want, got := range map[string]string{
		"v1_MTo2xowazkHy1MgGwYBHxr+gIN82G3dLPTD2iJqUjig": Signature("/a", Read, "user", "token", ""),
		"v1_3cIoR2VGUDHMZ4314UiVu2BJftKzzQORdjgCtB+/Zcw": Signature("/a", Read, "", "token", "5"),
	} {
		if got != want {
			t.Errorf("signature %s, want %s", got, want)
		}
	}
	for s, want := range map[string]bool{Signature("", "", "", "", ""): true, "": false, "v1_": false, "v2_" + strings.Repeat("a", 43): false, "v1_" + strings.Repeat("a", 44): false} {
		if IsSignature(s) != want {
			t.Errorf("IsSignature(%q) is not %v", s, want)
		}
	}
}

func TestTokens(t *testing.T) {
	a, b := NewToken(), NewToken()
	if len(a) != 64 || a == b || !Same(a, a) || Same(a, b) || Same(a, a[:63]) || Same("", a) {
		t.Errorf("tokens %q and %q", a, b)
	}
	for _, c := range []struct {
		record, given string
		want          bool
	}{{"", "", true}, {"", "x", true}, {a, a, true}, {a, "", false}, {a, b, false}} {
		if got := (&Target{Record: Record{EnvdToken: c.record}}).Admits(c.given); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestTarget(t *testing.T) {
	want := &Target{ID: "sb1", Port: EnvdPort}
	if got := TargetOf(WithTarget(context.Background(), want)); got != want || got.User() != DefaultUser {
		t.Errorf("%+v", got)
	}
	defer func() {
		if recover() == nil {
			t.Error("a request without a target was served")
		}
	}()
	TargetOf(context.Background())
}
