package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// plainCode is what differs in the children of a snapshot without OpenSSL, and as a
// list of what the same thing is called in different places.
const plainCode = `
import os, random, sys, numpy.random, socket, uuid
def read(path): return open(path).read()
[[str(v) for v in (random.random(), random.gauss(0, 1), random.getrandbits(64), numpy.random.rand(), numpy.random.randn(), os.urandom(16).hex(), uuid.uuid4())],
 [socket.gethostname() + "\n", read("/etc/hostname"), read("/proc/sys/kernel/hostname"), read("/etc/hosts").split("\n")[1].removeprefix("127.0.1.1 ") + "\n"],
 [read("/proc/sys/kernel/random/boot_id"), read("/run/forkd/identity/generation").split()[1] + "\n"],
 "_ssl" in sys.modules]
`

// Where the runtime has nothing to renew that its agent cannot, nothing of it is asked
// in a child. Whether the parent has drawn half a pair of Gaussian numbers decides that
// for numpy's generator, so there are snapshots with it and without. One is as users
// get it who ask for nothing: with numpy's generator made, and not seeded.
func TestForkContractWithoutOpenSSL(t *testing.T) {
	d := shared(t)
	seen := make(map[string]string)
	drawn := func(draw string) client.SnapshotRequest {
		return client.SnapshotRequest{
			Modules: &[]string{"random", "numpy.random"}, WarmUp: []string{"random.seed(1); numpy.random.seed(1); random.gauss(0, 1); " + draw},
		}
	}
	for name, req := range map[string]client.SnapshotRequest{
		"plain": drawn("numpy.random.rand()"), "plain-half-pair": drawn("numpy.random.randn()"), "plain-default": {},
	} {
		req.Tag = name
		if _, err := d.CreateSnapshot(limited(t, 6*time.Minute), req, nil); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if _, err := d.RemoveSnapshot(context.Background(), name, client.RemoveOptions{}); err != nil {
				t.Error(err)
			}
		})
		ids := d.forkWith(t, client.ForkRequest{SnapshotTag: name, N: client.Ptr(20)})
		each(ids, func(_ int, id string) {
			if !value[bool](t, d, id, "__import__('sys').modules.get('numpy.random.mtrand') is not None") {
				t.Errorf("%s (%s) has no numpy.random", id, name)
			}
		})
		for _, id := range ids {
			got := value[[]any](t, d, id, plainCode)
			for i, v := range got[0].([]any) {
				key := fmt.Sprint(v)
				if owner, taken := seen[key]; taken {
					t.Errorf("draw %d of %s (%s) is %s, as one of %s", i, id, name, key, owner)
				}
				seen[key] = id
			}
			for _, same := range got[1:3] {
				for i, v := range same.([]any) {
					if first := same.([]any)[0]; v != first || v == "\n" {
						t.Errorf("%s calls itself %q, and in place %d %q", id, first, i, v)
					}
				}
			}
			if got[3] != false {
				t.Fatal("OpenSSL is loaded, so this tests nothing new")
			}
		}
	}
}
