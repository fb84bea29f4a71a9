package sandbox

import (
	"context"
	"slices"
	"sync"
)

// keyedLock is a set of locks by name. Whoever waits for one gets it in the order
// of asking. The zero value is ready.
type keyedLock struct {
	mu   sync.Mutex
	held map[string][]chan struct{} // who waits for each lock that is held; guarded by mu
}

// try takes the lock of a name unless it is held.
func (k *keyedLock) try(name string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.grab(name)
}

// grab is try for a caller that holds k.mu.
func (k *keyedLock) grab(name string) bool {
	if _, held := k.held[name]; held {
		return false
	}
	if k.held == nil {
		k.held = make(map[string][]chan struct{})
	}
	k.held[name] = nil
	return true
}

// take waits for the lock of a name.
func (k *keyedLock) take(ctx context.Context, name string) error {
	k.mu.Lock()
	if k.grab(name) {
		k.mu.Unlock()
		return nil
	}
	mine := make(chan struct{})
	k.held[name] = append(k.held[name], mine)
	k.mu.Unlock()
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
	}
	k.mu.Lock()
	at := slices.Index(k.held[name], mine)
	if at >= 0 {
		k.held[name] = slices.Delete(k.held[name], at, at+1)
	}
	k.mu.Unlock()
	if at < 0 { // it came at the same time
		k.release(name)
	}
	return wrap(context.Cause(ctx), "waiting for another operation on %q", name)
}

// release hands the lock on.
func (k *keyedLock) release(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	waiting := k.held[name]
	if len(waiting) == 0 {
		delete(k.held, name)
		return
	}
	k.held[name] = waiting[1:]
	close(waiting[0])
}

// tagLocks keep a tag from being removed while something that will stand on it
// is being made. The zero value is ready.
type tagLocks struct {
	mu   sync.Mutex
	tags map[string]*tagLock // guarded by mu
}

type tagLock struct {
	sync.RWMutex
	users int // guarded by tagLocks.mu
}

func (l *tagLocks) get(tag string) *tagLock {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tags[tag]
	if t == nil {
		if l.tags == nil {
			l.tags = make(map[string]*tagLock)
		}
		t = new(tagLock)
		l.tags[tag] = t
	}
	t.users++
	return t
}

func (l *tagLocks) put(tag string, t *tagLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.users--; t.users == 0 {
		delete(l.tags, tag)
	}
}

// share keeps a tag until free is called.
func (l *tagLocks) share(tag string) (free func()) {
	t := l.get(tag)
	t.RLock()
	return func() {
		t.RUnlock()
		l.put(tag, t)
	}
}

// own waits until nobody shares any of the tags, and lets nobody do so until
// free is called.
func (l *tagLocks) own(tags []string) (free func()) {
	tags = slices.Compact(slices.Sorted(slices.Values(tags))) // always in the same order
	var locks []*tagLock
	for _, tag := range tags {
		t := l.get(tag)
		t.Lock()
		locks = append(locks, t)
	}
	return func() {
		for i, t := range locks {
			t.Unlock()
			l.put(tags[i], t)
		}
	}
}
