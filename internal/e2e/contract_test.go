package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// identity is everything in which a child must differ from all other machines.
type identity struct {
	Urandom, UUID, SSL, Hostname, Machine, Boot, Temp string

	Random, Numpy float64
	Sample        []int
	Generation    string // of a generator that the child makes for itself

	Monotonic, ParentMonotonic float64
	ParentDraws                []any
	ParentIDs                  []string
}

// identityCode runs as a child's very first code.
const identityCode = `
import os, random, uuid, numpy, ssl, socket, tempfile, time
def read(path): return open(path).read().strip()
dict(urandom=os.urandom(16).hex(), random=random.random(), numpy=numpy.random.rand(), uuid=str(uuid.uuid4()),
     ssl=ssl.RAND_bytes(16).hex(), hostname=socket.gethostname(), machine=read("/etc/machine-id"),
     boot=read("/proc/sys/kernel/random/boot_id"), temp=tempfile.mktemp(), sample=random.sample(range(10**6), 4),
     generation=str(numpy.random.default_rng().integers(2**62)),
     monotonic=time.monotonic(), parentmonotonic=time.parent_monotonic, parentdraws=os.parent_draws,
     parentids=read("/root/parent-ids").split())
`

// uniques returns the values of an identity that must be its own, by name.
func (id *identity) uniques() map[string]string {
	return map[string]string{
		"os.urandom": id.Urandom, "random.random": fmt.Sprint(id.Random), "numpy.random.rand": fmt.Sprint(id.Numpy),
		"uuid.uuid4": id.UUID, "ssl.RAND_bytes": id.SSL, "hostname": id.Hostname, "machine-id": id.Machine,
		"boot-id": id.Boot, "random.sample": fmt.Sprint(id.Sample), "default_rng": id.Generation, "tempfile": id.Temp,
	}
}

// The fork contract with a hundred children, on contents (field cases 001, 134,
// 140, 142, 144, 146). The parent had drawn from its generators and seeded them.
func TestForkContract(t *testing.T) {
	d := shared(t)
	before := d.hashes(t)
	ids := d.fork(t, 100)
	late := d.fork(t, 3)
	all := append(ids, late...)

	people := make([]identity, len(all))
	each(all, func(i int, id string) { people[i] = value[identity](t, d, id, identityCode) })
	seen := make(map[string]string) // value to who has it
	for i, v := range people[0].ParentDraws {
		seen[fmt.Sprint(v)] = fmt.Sprintf("the parent's draw %d", i)
	}
	for _, v := range people[0].ParentIDs {
		seen[v] = "the parent"
	}
	for i := range people {
		for name, v := range people[i].uniques() {
			if v == "" {
				t.Errorf("%s of %s is empty", name, all[i])
			}
			key := name + " " + v
			for _, k := range []string{key, v} {
				if owner, taken := seen[k]; taken {
					t.Errorf("%s of %s is %s, as that of %s", name, all[i], v, owner)
				}
			}
			seen[key] = all[i]
		}
		if people[i].Monotonic <= people[i].ParentMonotonic {
			t.Errorf("CLOCK_MONOTONIC of %s went back from %v to %v", all[i], people[i].ParentMonotonic, people[i].Monotonic)
		}
	}
	if len(people[0].ParentIDs) != 3 || len(people[0].ParentDraws) != 5 {
		t.Fatalf("the parent left no draws to compare with: %+v", people[0])
	}
	t.Run("Clock", func(t *testing.T) { testClock(t, d, all[:20]) })
	t.Run("Isolation", func(t *testing.T) { testIsolation(t, d, ids) })
	t.Run("FirstCommand", func(t *testing.T) { testFirstCommand(t, d) })

	after := d.hashes(t)
	for path, sum := range before {
		if after[path] != sum {
			t.Errorf("%s has changed", path)
		}
	}
	if len(after) != len(before) {
		t.Errorf("the snapshot had %d files and now has %d", len(before), len(after))
	}
}

// testClock compares the guest's clock with the host's, before and after whose
// reading it was read. The narrowest of several brackets tells most.
func testClock(t *testing.T, d *daemon, ids []string) {
	const limit = 50 * time.Millisecond
	for _, id := range ids {
		var low, high time.Duration // bounds of guest minus host
		for i := range 8 {
			t0 := time.Now()
			ns := value[int64](t, d, id, "time.time_ns() // 1000") * 1000
			t1 := time.Now()
			l, h := time.Duration(ns-t1.UnixNano()), time.Duration(ns-t0.UnixNano())
			if i == 0 {
				low, high = l, h
			}
			low, high = max(low, l), min(high, h)
		}
		if low > limit || high < -limit {
			t.Errorf("the clock of %s is off by %s to %s", id, low, high)
		}
		if high-low > limit {
			t.Logf("the clock of %s could be compared to %s only", id, high-low)
		}
	}
}

// testIsolation: what one child writes to files and memory no other machine sees.
func testIsolation(t *testing.T, d *daemon, ids []string) {
	each(ids, func(i int, id string) {
		d.eval(t, id, fmt.Sprintf(`
import os, numpy
mine = %d
shared = numpy.full(50_000, mine)
numpy.mine = mine
with open("/root/owner", "w") as f: f.write(str(mine))
with open(f"/root/only-{mine}", "w") as f: f.write("x")
open("/dev/shm/mine", "w").write(str(mine))
os.sync()`, i))
	})
	const look = `[mine, int(shared.sum()), numpy.mine, int(open("/root/owner").read()), int(open("/dev/shm/mine").read()),
		[n for n in os.listdir("/root") if n.startswith("only-")]]`
	each(ids, func(i int, id string) {
		got := string(d.eval(t, id, look).Value)
		if want := fmt.Sprintf(`[%d,%d,%d,%d,%d,["only-%d"]]`, i, 50_000*i, i, i, i, i); got != want {
			t.Errorf("child %d sees %s, want %s", i, got, want)
		}
	})
	id := d.fork(t, 1)[0]
	if got := d.sh(t, id, "cat /root/owner; ls /root/only-* /dev/shm/mine 2>/dev/null || true"); got != "parent\n" {
		t.Errorf("a later fork sees %q", got)
	}
	if got := value[bool](t, d, id, `"mine" in globals() or hasattr(__import__("numpy"), "mine")`); got {
		t.Error("a later fork sees a sibling's memory")
	}
}

// testFirstCommand: a command that comes first finds the same as an evaluation.
func testFirstCommand(t *testing.T, d *daemon) {
	ids := d.fork(t, 8)
	lines := make([]string, len(ids))
	bounds := make([][2]time.Time, len(ids))
	each(ids, func(i int, id string) {
		bounds[i][0] = time.Now()
		lines[i] = d.sh(t, id, "date +%s%N; cat /proc/sys/kernel/random/uuid; head -c 32 /dev/urandom | sha256sum; head -c 8 /dev/random | sha256sum")
		bounds[i][1] = time.Now()
	})
	seen := make(map[string]bool)
	for i, text := range lines {
		fields := strings.Fields(strings.ReplaceAll(text, "-\n", "\n"))
		if len(fields) != 4 {
			t.Fatalf("%s answered %q", ids[i], text)
		}
		var ns int64
		fmt.Sscan(fields[0], &ns)
		if now := time.Unix(0, ns); now.Before(bounds[i][0].Add(-50*time.Millisecond)) || now.After(bounds[i][1].Add(50*time.Millisecond)) {
			t.Errorf("the first command of %s ran at %s, the host says %s to %s", ids[i], now, bounds[i][0], bounds[i][1])
		}
		for _, v := range fields[1:] {
			if seen[v] {
				t.Errorf("%s of %s was drawn before", v, ids[i])
			}
			seen[v] = true
		}
	}
}

// hashes returns the hash of every file that snapshots are made of.
func (d *daemon) hashes(t *testing.T) map[string]string {
	t.Helper()
	sums := make(map[string]string)
	for _, path := range d.filesUnder(t, "snapshots", "layers") {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		h := sha256.New()
		_, err = io.Copy(h, f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		sums[path] = hex.EncodeToString(h.Sum(nil))
	}
	return sums
}

// Children that write to their disks at the same time do not damage each other's
// files or file systems (field case 001).
func TestChildrenWriteTheirDisksAtTheSameTime(t *testing.T) {
	d := shared(t)
	const script = `cd /var/tmp
for i in $(seq 200); do dd if=/dev/urandom of=f$i bs=4k count=4 2>/dev/null || exit 1; done
sync; sha256sum f* > sums; sync; echo 3 > /proc/sys/vm/drop_caches; sha256sum -c --quiet sums || exit 2
tail -qc 8 f* | sha256sum; wc -l < sums; dmesg | grep -iE 'ext4.*(error|warn|corrupt)|I/O error'; true`
	ids := d.fork(t, 4)
	out := make([]string, len(ids))
	each(ids, func(i int, id string) {
		var text strings.Builder
		exit, err := d.Run(limited(t, 5*time.Minute), id, client.Command{Args: []string{"sh", "-c", script}, Stdout: &text, Stderr: &text})
		if err != nil || exit.ExitCode != 0 {
			t.Errorf("%s: %v, %v\n%s", id, exit, err, text.String())
		}
		out[i] = text.String()
	})
	seen := make(map[string]bool)
	for i, text := range out {
		sum, rest, _ := strings.Cut(text, " ")
		if seen[sum] || strings.TrimSpace(strings.TrimPrefix(rest, " -\n")) != "200" {
			t.Errorf("%s printed %q", ids[i], text)
		}
		seen[sum] = true
	}
}
