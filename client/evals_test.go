package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/api"
)

func TestEvalAll(t *testing.T) {
	two := `{"result":"2","result_truncated":false,"value":2,"error":null,"exit_code":0,"stdout":"","stdout_truncated":false,"stderr":"","stderr_truncated":false}`
	good := func(id string) string { return `{"sandbox_id":"` + id + `","result":` + two + "}\n" }
	bad := func(id string) string {
		return `{"sandbox_id":"` + id + `","error":{"error":"no memory","code":"capacity_exceeded","hint":"end others",` +
			`"shortage":{"resource":"memory","needed":3,"free":2,"held":1}}}` + "\n"
	}
	for name, c := range map[string]struct{ body, heard, fails string }{
		"in any order":    {body: good("c") + "\n" + good("a") + "\n\n" + good("b"), heard: "c=2 a=2 b=2"},
		"one fails":       {body: good("a") + bad("b") + good("c"), heard: "a=2 b:no memory c=2"},
		"cut off":         {body: good("a") + bad("b"), heard: "a=2 b:no memory", fails: "1 of 3 have not answered"},
		"cut in a line":   {body: good("a") + `{"sandbox_id":`, heard: "a=2", fails: "2 of 3 have not answered"},
		"one says twice":  {body: good("a") + good("a"), heard: "a=2", fails: `sandbox "a" has no place`},
		"one nobody knew": {body: good("d"), fails: `sandbox "d" has no place`},
		"says nothing":    {body: `{"sandbox_id":"a"}` + "\n", fails: `sandbox "a" has no place`},
		"not JSON":        {body: "ok\n", fails: "3 of 3 have not answered"},
		"empty":           {fails: "3 of 3 have not answered"},
	} {
		t.Run(name, func(t *testing.T) {
			var asked api.EvalAllRequest
			cl := answering(t, func(w http.ResponseWriter, r *http.Request) {
				if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || r.URL.Path != "/v1/eval" {
					t.Errorf("%s, %v", r.URL, err)
				}
				io.WriteString(w, c.body)
			})
			var heard []string
			err := cl.EvalAll(context.Background(), []string{"a", "b", "c"}, EvalRequest{Code: "1+1", TimeoutSecs: Ptr(5.0)},
				func(id string, res *EvalResult, err error) error {
					if err == nil {
						heard = append(heard, id+"="+*res.Result)
						return nil
					}
					heard = append(heard, fmt.Sprint(id, ":", err))
					var e *Error
					if !errors.As(err, &e) || e.Code != api.ErrorCodeCapacityExceeded || e.Hint != "end others" || e.Shortage.Needed != 3 || res != nil ||
						e.Body().Error != "no memory" || e.Body().Code != e.Code || e.Body().Hint != e.Hint || e.Body().Shortage != e.Shortage {
						t.Errorf("%s: %+v, %v", id, e, res)
					}
					return nil
				})
			if got := strings.Join(heard, " "); got != c.heard {
				t.Errorf("heard %q, want %q", got, c.heard)
			}
			if c.fails == "" && err != nil || c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) {
				t.Errorf("%v, want %q", err, c.fails)
			}
			if len(asked.Sandboxes) != 3 || asked.Code != "1+1" || *asked.TimeoutSecs != 5 {
				t.Errorf("asked %+v", asked)
			}
		})
	}
	t.Run("somebody has heard enough", func(t *testing.T) {
		left := make(chan bool)
		cl := answering(t, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			io.WriteString(w, good("a"))
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
			close(left)
		})
		enough := errors.New("enough")
		err := cl.EvalAll(context.Background(), []string{"a", "b"}, EvalRequest{Code: "1"}, func(string, *EvalResult, error) error { return enough })
		if err != enough {
			t.Error(err)
		}
		<-left
	})
	t.Run("refused", func(t *testing.T) {
		cl := answering(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(400)
			io.WriteString(w, `{"error":"sandboxes: must be 1 to 1000, not 0","code":"invalid_argument"}`)
		})
		err := cl.EvalAll(context.Background(), nil, EvalRequest{Code: "1"}, nil)
		if !IsCode(err, api.ErrorCodeInvalidArgument) {
			t.Error(err)
		}
	})
}
