package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/forkd-dev/forkd/client"
)

// A sandbox goes back to where it came from, or to a branch of itself, under its
// own id, and nothing of later stays. It can be branched again from there.
func TestRollback(t *testing.T) {
	d := shared(t)
	id, pid := lively(t, d)
	info := d.branch(t, id, client.BranchRequest{})
	d.eval(t, id, "x = 'later'; open('/root/later', 'w').close()")
	before, err := d.Sandbox(limited(t, patience), id)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, where := range []string{info.Tag, tag, info.Tag} {
		back, err := d.Rollback(limited(t, patience), id, where)
		if err != nil {
			t.Fatal(err)
		}
		if back.ID != id || back.SnapshotTag != where || back.State != "running" || back.CreatedAtUnix != before.CreatedAtUnix {
			t.Errorf("rolled back to %s it is %+v, before %+v", where, back, before)
		}
		got := string(d.eval(t, id, `import os; [globals().get("x"), os.path.exists("/root/later"), os.getpid(), os.uname().nodename]`).Value)
		want := fmt.Sprintf(`[21,false,%d,"%s"]`, pid, id)
		if where == tag {
			want = fmt.Sprintf(`[null,false,%d,"%s"]`, pid, id)
		} else {
			d.ticks(t, id)
		}
		if got != want {
			t.Errorf("rolled back to %s it has %s, want %s", where, got, want)
		}
		draw := value[string](t, d, id, "import random; repr(random.random())")
		if seen[draw] {
			t.Errorf("rolled back to %s it draws %s again", where, draw)
		}
		seen[draw] = true
		d.eval(t, id, "x = 'later'; open('/root/later', 'w').close()")
	}
	again := d.branch(t, id, client.BranchRequest{})
	if got := value[string](t, d, d.forkTag(t, again.Tag, 1)[0], "x"); got != "later" {
		t.Errorf("x is %s", got)
	}
}

// What cannot be rolled back stays as it is.
func TestRollbackRefused(t *testing.T) {
	d := shared(t)
	ids := d.fork(t, 2)
	d.eval(t, ids[0], "x = 1")
	other := d.branch(t, ids[1], client.BranchRequest{})
	_, err := d.Rollback(limited(t, patience), ids[0], other.Tag)
	wantCode(t, err, "failed_precondition", tag)
	_, err = d.Rollback(limited(t, patience), ids[0], "nowhere")
	wantCode(t, err, "not_found", "nowhere")
	_, err = d.Rollback(limited(t, patience), "sb-nobody", tag)
	wantCode(t, err, "not_found", "sb-nobody")
	if got := value[int](t, d, ids[0], "x"); got != 1 {
		t.Errorf("x is %d", got)
	}
	// One that has ended by itself can go back.
	d.Exec(limited(t, patience), ids[0], client.ExecRequest{Args: []string{"sh", "-c", "echo o > /proc/sysrq-trigger"}})
	eventually(t, patience, "the guest is off", func() bool {
		info, err := d.Sandbox(t.Context(), ids[0])
		return err == nil && info.State != "running"
	})
	if _, err := d.Rollback(limited(t, patience), ids[0], tag); err != nil {
		t.Fatal(err)
	}
	if got := value[bool](t, d, ids[0], `"x" in globals()`); got {
		t.Error("x is still there")
	}
}

// A derived snapshot holds what was done, its chain says where it comes from, and
// it cannot be pulled from under those who use it.
func TestFamilies(t *testing.T) {
	d := shared(t)
	ctx := limited(t, patience)
	from := tag
	var tags []string
	for i := range 3 {
		name := fmt.Sprintf("family-%d", i)
		info, err := d.DeriveSnapshot(ctx, from, client.DeriveRequest{
			Tag: name, Commands: [][]string{{"sh", "-c", fmt.Sprintf("echo %d >> /root/family", i)}}, Evals: []string{fmt.Sprintf("y%d = %d", i, i)},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if info.Status != "ready" {
			t.Errorf("%+v", info)
		}
		tags, from = append(tags, name), name
	}
	t.Cleanup(func() { d.RemoveSnapshot(context.Background(), tags[0], client.RemoveOptions{Cascade: true}) })
	child := d.forkTag(t, tags[2], 1)[0]
	if got := string(d.eval(t, child, "[y0, y1, y2, open('/root/family').read()]").Value); got != `[0,1,2,"0\n1\n2\n"]` {
		t.Errorf("a child of the third has %s", got)
	}
	detail, err := d.Snapshot(ctx, tags[2])
	if err != nil || !slices.Equal(detail.Ancestors, []string{tags[1], tags[0], tag}) || detail.ChainDepth != 3 {
		t.Errorf("%+v, %v", detail, err)
	}
	for _, bad := range []client.DeriveRequest{
		{Tag: "bad", Commands: [][]string{{"sh", "-c", "echo no; exit 3"}}}, {Tag: "bad", Evals: []string{"1/0"}}, {Tag: "bad", Commands: [][]string{{"nothing-like-that"}}},
	} {
		if _, err := d.DeriveSnapshot(ctx, tag, bad, nil); err == nil || client.IsCode(err, "internal") {
			t.Errorf("deriving with %+v: %v", bad, err)
		}
		if _, err := d.Snapshot(ctx, "bad"); !client.IsCode(err, "not_found") {
			t.Errorf("it left something: %v", err)
		}
	}
	_, err = d.DeriveSnapshot(ctx, tag, client.DeriveRequest{Tag: tags[0], Evals: []string{"1"}}, nil)
	wantCode(t, err, "already_exists", tags[0])

	_, err = d.RemoveSnapshot(ctx, tags[1], client.RemoveOptions{})
	wantCode(t, err, "in_use", tags[2])
	_, err = d.RemoveSnapshot(ctx, tags[2], client.RemoveOptions{})
	wantCode(t, err, "in_use", child)
	if removed, err := d.RemoveSnapshot(ctx, tags[0], client.RemoveOptions{Force: true}); err != nil || !slices.Equal(removed, tags[:1]) {
		t.Errorf("forced: %v, %v", removed, err)
	}
	if got := value[int](t, d, d.forkTag(t, tags[1], 1)[0], "y0 + y1"); got != 1 {
		t.Errorf("what stood on a removed snapshot has %d", got)
	}
	whole, err := d.CompactSnapshot(ctx, tags[2], "family-whole")
	if err != nil || whole.Status != "ready" {
		t.Fatalf("%+v, %v", whole, err)
	}
	t.Cleanup(func() { d.RemoveSnapshot(context.Background(), "family-whole", client.RemoveOptions{Cascade: true}) })
	nodes, err := d.Tree(ctx)
	parents := make(map[string]string)
	for _, n := range nodes {
		parents[n.Name] = n.Parent
	}
	if err != nil || parents[tags[2]] != tags[1] || parents[tags[1]] != "" || parents[child] != tags[2] || parents["family-whole"] != "" {
		t.Errorf("the tree is %+v, %v", nodes, err)
	}
	if removed, err := d.RemoveSnapshot(ctx, tags[1], client.RemoveOptions{Cascade: true}); err != nil || !slices.Equal(removed, tags[1:]) {
		t.Errorf("cascade: %v, %v", removed, err)
	}
	if _, err := d.Sandbox(ctx, child); !client.IsCode(err, "not_found") {
		t.Errorf("a sandbox outlived the cascade: %v", err)
	}
	if got := value[int](t, d, d.forkTag(t, "family-whole", 1)[0], "y0 + y1 + y2"); got != 3 {
		t.Errorf("the compacted one has %d", got)
	}
}
