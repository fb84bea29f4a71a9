package e2e

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// evalAll evaluates code in many sandboxes with one request. It returns the values as JSON, and
// the code of the error of those that have none.
func (d *daemon) evalAll(t *testing.T, ids []string, code string, heard func(id string)) (values, failed map[string]string) {
	t.Helper()
	values, failed = map[string]string{}, map[string]string{}
	err := d.EvalAll(limited(t, patience), ids, client.EvalRequest{Code: code}, func(id string, res *client.EvalResult, err error) error {
		var e *client.Error
		switch {
		case errors.As(err, &e):
			failed[id] = string(e.Code)
		case res.Error != nil:
			failed[id] = res.Error.Type
		default:
			values[id] = string(res.Value)
		}
		if heard != nil {
			heard(id)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return values, failed
}

// One request evaluates in many sandboxes: each in its own interpreter, whose state it keeps.
// What becomes of one, before or meanwhile, is nothing to the others; and a client that goes away
// leaves nothing running.
func TestEvalInMany(t *testing.T) {
	d := shared(t)
	ids := d.fork(t, 5)
	values, failed := d.evalAll(t, ids, "import os, time; mine = os.uname().nodename; mine", nil) // they have never run
	for _, id := range ids {
		if values[id] != fmt.Sprintf("%q", id) || len(failed) != 0 {
			t.Fatalf("%s says %s; %v", id, values[id], failed)
		}
	}
	values, failed = d.evalAll(t, ids, fmt.Sprintf("1 / (mine != %q)", ids[1]), nil)
	if failed[ids[1]] != "ZeroDivisionError" || len(failed) != 1 || len(values) != 4 {
		t.Errorf("one raises: %v, %v", values, failed)
	}

	// One ends while it evaluates, when the others have answered.
	left := 4
	values, failed = d.evalAll(t, ids, fmt.Sprintf("mine == %q and time.sleep(600)", ids[2]), func(string) {
		if left--; left == 0 {
			if err := d.Kill(t.Context(), ids[2]); err != nil {
				t.Error(err)
			}
		}
	})
	if len(values) != 4 || len(failed) != 1 || failed[ids[2]] != "sandbox_dead" {
		t.Errorf("one is ended meanwhile: %v, %v", values, failed)
	}
	// And it is missing from then on.
	values, failed = d.evalAll(t, ids, "mine", nil)
	if len(failed) != 1 || failed[ids[2]] != "not_found" {
		t.Errorf("one is gone: %v", failed)
	}
	for _, id := range []string{ids[0], ids[1], ids[3], ids[4]} {
		if values[id] != fmt.Sprintf("%q", id) {
			t.Errorf("%s says %s", id, values[id])
		}
	}

	// Who leaves does not leave evaluations behind that others would have to wait for.
	alive := []string{ids[0], ids[1]}
	enough := errors.New("enough")
	err := d.EvalAll(limited(t, patience), alive, client.EvalRequest{Code: fmt.Sprintf("mine == %q and time.sleep(600)", ids[1])},
		func(id string, res *client.EvalResult, err error) error { return enough })
	if err != enough {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	res, err := d.Eval(ctx, ids[1], client.EvalRequest{Code: "mine"})
	if err != nil || string(res.Value) != fmt.Sprintf("%q", ids[1]) {
		t.Errorf("after its evaluation was given up: %v, %v", res, err)
	}
}

// What a client does not read stays in the sandboxes, and not in the daemon, until it does.
func TestEvalInManyOfWhoDoesNotRead(t *testing.T) {
	d := shared(t)
	ids := d.fork(t, 40)
	before, grown := d.usage(t).rssMiB, 0
	once := sync.OnceFunc(func() {
		each(ids, func(_ int, id string) {
			eventually(t, patience, "evaluation in "+id, func() bool {
				_, err := d.StatFile(t.Context(), id, "/root/evaluated")
				return err == nil
			})
		})
		time.Sleep(time.Second) // for what would come
		grown = d.usage(t).rssMiB - before
	})
	values, failed := d.evalAll(t, ids, "open('/root/evaluated', 'w').close(); 'x' * 4_000_000", func(string) { once() })
	for _, id := range ids {
		if len(values[id]) != 4_000_002 {
			t.Errorf("%s has answered %.100s %s", id, values[id], failed[id])
		}
	}
	if grown > 150 {
		t.Errorf("the daemon grew by %d MiB", grown)
	}
}
