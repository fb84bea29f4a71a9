package jail

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
)

// Ids from here on are in no range that distributions or systemd use, be it for users,
// containers or dynamic services.
const (
	firstUser = 0x70000000
	userCount = 1 << 20
)

// users hands out user ids, each to one process at a time. It is safe for concurrent
// use.
type users struct {
	first, count uint32 // immutable

	mu   sync.Mutex
	next uint32 // guarded by mu
	used map[uint32]bool
}

// newUsers returns the ids of the configuration, or those that this process can give
// away in the user namespace that it is in itself.
func newUsers(first, count uint32) (*users, error) {
	if first == 0 || count == 0 {
		text, err := os.ReadFile("/proc/self/uid_map")
		if err != nil {
			return nil, fmt.Errorf("finding user ids for processes: %w", err)
		}
		first, count = pickUsers(string(text))
	}
	// A random start, so that ids that another jailer gives out are rarely the same.
	return &users{first: first, count: count, next: rand.Uint32N(count), used: make(map[uint32]bool)}, nil
}

// pickUsers returns a range that is in the map of user ids: the one at firstUser, or
// the upper half of the largest range that there is.
func pickUsers(idMap string) (first, count uint32) {
	for line := range strings.Lines(idMap) {
		var inside, outside, n uint32
		if _, err := fmt.Sscan(line, &inside, &outside, &n); err != nil {
			continue
		}
		if inside <= firstUser && uint64(inside)+uint64(n) >= firstUser+userCount {
			return firstUser, userCount
		}
		if n/2 > count {
			first, count = inside+n/2, n-n/2
		}
	}
	const nobody = 65534 // means any id that is not mapped
	if first <= nobody && uint64(first)+uint64(count) > nobody {
		count = nobody - first
	}
	return max(first, 1), max(count, 1)
}

// take returns an id that is not in use.
func (u *users) take() (uint32, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for range u.count {
		id := u.first + u.next
		u.next = (u.next + 1) % u.count
		if !u.used[id] {
			u.used[id] = true
			return id, nil
		}
	}
	return 0, fmt.Errorf("all %d user ids for processes are in use", u.count)
}

// hold marks an id as in use.
func (u *users) hold(id uint32) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.used[id] = true
}

func (u *users) give(id uint32) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.used, id)
}
