package weight

import (
	"context"
	"errors"
	"sync"
)

// content identifies bytes.
type content struct {
	sha256 string
	size   int64
}

func contentOf(f File) content { return content{f.SHA256, f.Size} }

// errTargetGone says that the object whose bytes were to be shared was removed or damaged meanwhile.
var errTargetGone = errors.New("weight: the equal file is gone")

// known is which bytes the store has, and which are just being stored: of equal files one is stored, the others wait
// for it and share its bytes. Who waits has no claim of its own.
type known struct {
	mu sync.Mutex
	by map[content]*holding
}

// holding is an object with some bytes; key is set when done is closed, and stays "" if storing it failed.
type holding struct {
	key  string
	done chan struct{}
}

func held(key string) *holding {
	h := &holding{key: key, done: make(chan struct{})}
	close(h.done)
	return h
}

// learn takes in the files of all READY revisions.
func (k *known) learn(ctx context.Context, m *Manager) error {
	k.by = make(map[content]*holding)
	all, err := m.scan(ctx)
	if err != nil {
		return err
	}
	for _, f := range all {
		for _, file := range f.files() {
			if m.problem(file) == "" {
				k.by[contentOf(file)] = held(file.Key)
			}
		}
	}
	return nil
}

// offer makes an object of this import known.
func (k *known) offer(c content, key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.by[c] == nil {
		k.by[c] = held(key)
	}
}

// claim returns the key of an object with these bytes, after waiting for one that is being stored; "" when there is
// none: then the caller stores it, and must settle.
func (k *known) claim(ctx context.Context, c content) (key string, err error) {
	for {
		k.mu.Lock()
		h := k.by[c]
		if h == nil {
			k.by[c] = &holding{done: make(chan struct{})}
			k.mu.Unlock()
			return "", nil
		}
		k.mu.Unlock()
		select {
		case <-h.done:
		case <-ctx.Done():
			return "", ctx.Err()
		}
		if h.key != "" {
			return h.key, nil
		}
	}
}

// find is the key of an object with these bytes that is there now, else "".
func (k *known) find(c content) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h := k.by[c]; h != nil {
		return h.key
	}
	return ""
}

// tryClaim is claim for a caller that must not wait: false when there is such an object, or will be.
func (k *known) tryClaim(c content) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.by[c] != nil {
		return false
	}
	k.by[c] = &holding{done: make(chan struct{})}
	return true
}

// settle says what came of a claim.
func (k *known) settle(c content, key string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.by[c]
	if err == nil {
		h.key = key
	} else {
		delete(k.by, c)
	}
	close(h.done)
}

// forget drops an object that is not there any more.
func (k *known) forget(c content, key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h := k.by[c]; h != nil && h.key == key {
		delete(k.by, c)
	}
}
