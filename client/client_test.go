package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/api"
)

func TestURL(t *testing.T) {
	for url, ok := range map[string]bool{
		"":                             true, // the default
		"http://127.0.0.1:8889":        true,
		"http://127.0.0.1:8889/":       true,
		"https://forkd.example":        true,
		"unix:///run/forkd.sock":       true,
		"unix://run/forkd.sock":        false,
		"unix://":                      false,
		"127.0.0.1:8889":               false,
		"localhost:8889":               false,
		"ftp://127.0.0.1":              false,
		"http://":                      false,
		"http://127.0.0.1:8889/prefix": false,
		"http://[::1":                  false,
		"\x00":                         false,
	} {
		c, err := New(Config{URL: url})
		if (err == nil) != ok {
			t.Errorf("%q: %v", url, err)
		}
		if err == nil {
			c.Close()
		}
	}
}

// answering returns a client whose every request gets one answer.
func answering(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	c, err := New(Config{URL: srv.URL, Token: "s3cret"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestErrors(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		want   Error
	}{
		"ours": {409, `{"error":"in use","code":"in_use","hint":"end it","dependents":["a"]}`,
			Error{Status: 409, Code: api.ErrorCodeInUse, Message: "in use", Hint: "end it"}},
		"a code of later": {418, `{"error":"tea","code":"teapot"}`, Error{Status: 418, Code: "teapot", Message: "tea"}},
		"a proxy's": {502, "<html>Bad Gateway</html>", Error{Status: 502, Code: api.ErrorCodeInternal,
			Message: `the answer "502 Bad Gateway" is not one of forkd's`, Hint: "check that FORKD_URL names a forkd daemon"}},
		"empty": {500, "", Error{Status: 500, Code: api.ErrorCodeInternal,
			Message: `the answer "500 Internal Server Error" is not one of forkd's`, Hint: "check that FORKD_URL names a forkd daemon"}},
		"a redirect": {302, "", Error{Status: 302, Code: api.ErrorCodeInternal,
			Message: `the answer "302 Found" is not one of forkd's`, Hint: "check that FORKD_URL names a forkd daemon"}},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			cl := answering(t, func(w http.ResponseWriter, r *http.Request) {
				asked++
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(c.status)
				io.WriteString(w, c.body)
			})
			_, err := cl.Sandbox(context.Background(), "x")
			var got *Error
			if !errors.As(err, &got) {
				t.Fatalf("got %v", err)
			}
			if got.Status != c.want.Status || got.Code != c.want.Code || got.Message != c.want.Message || got.Hint != c.want.Hint {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			if asked != 1 {
				t.Errorf("asked %d times", asked)
			}
		})
	}
}

// TestWrongAnswers: what is not an answer of forkd's is an error, not a value.
func TestWrongAnswers(t *testing.T) {
	for name, body := range map[string]string{
		"not JSON": "hello", "cut short": `{"id":"x"`, "empty": "", "other type": `[1]`,
	} {
		t.Run(name, func(t *testing.T) {
			c := answering(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) })
			if box, err := c.Sandbox(context.Background(), "x"); err == nil {
				t.Errorf("got %+v", box)
			}
		})
	}
	t.Run("another program's 200", func(t *testing.T) {
		c := answering(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })
		if err := c.Kill(context.Background(), "x"); err == nil {
			t.Error("a kill that answers 200 with a body counted as done")
		}
	})
}

// TestLostDaemon: a daemon that dies in the middle of a request is told from one
// that was never there.
func TestLostDaemon(t *testing.T) {
	for name, sent := range map[string]string{
		"before the answer": "",
		"in a stream":       "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n11\r\n{\"stdout\":\"half\"}\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			c := answering(t, func(w http.ResponseWriter, _ *http.Request) {
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				io.WriteString(conn, sent)
				conn.Close()
			})
			_, err := c.Run(context.Background(), "x", Command{Args: []string{"true"}})
			var lost *LostError
			if !errors.As(err, &lost) || lost.URL != c.URL() {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestStreamIsCut(t *testing.T) {
	for name, body := range map[string]string{
		"before all":    "",
		"after output":  `{"stdout":"half"}` + "\n",
		"in a line":     `{"exit":{"exit_code":0`,
		"not JSON":      "x\n",
		"a line of MiB": `{"stdout":"` + strings.Repeat("x", 2<<20) + `"}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			c := answering(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) })
			if exit, err := c.Run(context.Background(), "x", Command{Args: []string{"true"}}); err == nil {
				t.Errorf("got %+v", exit)
			}
			if info, err := c.CreateSnapshot(context.Background(), SnapshotRequest{Tag: "x"}, nil); err == nil {
				t.Errorf("got %+v", info)
			}
		})
	}
}

func TestConnectError(t *testing.T) {
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead.Close()
	for _, url := range []string{"http://" + dead.Addr().String(), "unix://" + filepath.Join(t.TempDir(), "no")} {
		c, err := New(Config{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		var connect *ConnectError
		if err := c.Health(context.Background()); !errors.As(err, &connect) || connect.URL != url {
			t.Errorf("%s: %v", url, err)
		}
		c.Close()
	}
}

func TestTokenIsSent(t *testing.T) {
	var got string
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
		fmt.Fprint(w, `[]`)
	})
	if _, err := c.Sandboxes(context.Background()); err != nil || got != "Bearer s3cret" {
		t.Errorf("%q %v", got, err)
	}
}

// TestNamesAreEscaped: an id or a path cannot reach another route.
func TestNamesAreEscaped(t *testing.T) {
	var got string
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.RequestURI
		fmt.Fprint(w, `{}`)
	})
	c.Sandbox(context.Background(), "a/b?c#d")
	if got != "/v1/sandboxes/a%2Fb%3Fc%23d" {
		t.Errorf("asked for %s", got)
	}
	c.StatFile(context.Background(), "x", "/ä &=\xff")
	if got != "/v1/sandboxes/x/files/stat?path=%2F%C3%A4+%26%3D%FF" {
		t.Errorf("asked for %s", got)
	}
}

func TestFromEnv(t *testing.T) {
	data := t.TempDir()
	home := filepath.Join(data, "forkd")
	t.Setenv("XDG_DATA_HOME", data)
	t.Setenv("FORKD_HOME", "")
	t.Setenv("FORKD_URL", "")
	want := func(url string) {
		t.Helper()
		c, err := FromEnv()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if c.URL() != url {
			t.Errorf("%s, want %s", c.URL(), url)
		}
	}
	want(DefaultURL)
	t.Setenv("FORKD_HOME", "/nobody/here")
	want("unix:///nobody/here/forkd.sock")
	t.Setenv("FORKD_HOME", "")
	if err := os.MkdirAll(home, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(Socket(home), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	want("unix://" + Socket(home))
	t.Setenv("FORKD_URL", "http://other:1")
	want("http://other:1")
}

func TestHome(t *testing.T) {
	for _, c := range []struct{ home, data, user, want string }{
		{"/a", "/b", "/c", "/a"},
		{"", "/b", "/c", "/b/forkd"},
		{"", "relative", "/c", "/c/.local/share/forkd"},
		{"", "", "/c", "/c/.local/share/forkd"},
	} {
		t.Setenv("FORKD_HOME", c.home)
		t.Setenv("XDG_DATA_HOME", c.data)
		t.Setenv("HOME", c.user)
		if got, err := Home(); err != nil || got != c.want {
			t.Errorf("%+v: %s %v", c, got, err)
		}
	}
}

func FuzzLines(f *testing.F) {
	f.Add("{}\n\n{\"stdout\":\"x\"}\n")
	f.Add("\n\n\n")
	f.Add(strings.Repeat("x", 70000) + "\n{}")
	f.Fuzz(func(t *testing.T, text string) {
		lines := newLineReader(strings.NewReader(text))
		for n := 0; ; n++ {
			var event api.ExecEvent
			if err := lines.next(&event); err != nil {
				return
			}
			if n > strings.Count(text, "\n") {
				t.Fatal("more events than lines")
			}
		}
	})
}

func ExampleClient() {
	c, err := FromEnv()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx := context.Background()
	boxes, failed, err := c.Fork(ctx, ForkRequest{SnapshotTag: "pyagent", N: Ptr(10)})
	if err != nil || len(failed) > 0 {
		fmt.Println(failed, err)
		return
	}
	for _, box := range boxes {
		defer c.Kill(ctx, box.ID)
		answer, err := c.Eval(ctx, box.ID, EvalRequest{Code: "numpy.zeros(5).tolist()"})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(*answer.Result)
	}
	exit, err := c.Run(ctx, boxes[0].ID, Command{Args: []string{"uname", "-m"}, Stdout: os.Stdout})
	fmt.Println(exit, err)
}
