package weight

import (
	"context"
	"errors"
	"slices"
	"strings"
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

// known is which bytes the store has, and which are just being stored, by all imports: of equal files one is stored,
// the others wait for it and share its bytes. Who waits has no claim of its own. Small files are not in it.
//
// An object leaves it before it is removed or written anew, so that one that is in it before and after it was linked to
// had the same bytes all the time.
type known struct {
	mu    sync.Mutex
	by    map[content]*holding
	keyed map[string]content // what each key has
}

// holding is objects with some bytes, and one that is being stored.
type holding struct {
	keys    []string
	storing chan struct{} // nil, or closed when it is done
}

func newKnown() *known {
	return &known{by: make(map[content]*holding), keyed: make(map[string]content)}
}

// offer makes an object known.
func (k *known) offer(c content, key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.offerLocked(c, key)
}

func (k *known) offerLocked(c content, key string) {
	if c.size < linkBytes {
		return
	}
	k.forgetLocked(key)
	h := k.by[c]
	if h == nil {
		h = new(holding)
		k.by[c] = h
	}
	h.keys = append(h.keys, key)
	k.keyed[key] = c
}

// claim returns the key of an object with these bytes, after waiting for one that is being stored; "" when there is
// none: then the caller stores it, and must settle.
func (k *known) claim(ctx context.Context, c content) (key string, err error) {
	for {
		k.mu.Lock()
		h := k.by[c]
		if h == nil {
			k.by[c] = &holding{storing: make(chan struct{})}
			k.mu.Unlock()
			return "", nil
		}
		key, storing := h.first(), h.storing
		k.mu.Unlock()
		if key != "" {
			return key, nil
		}
		select {
		case <-storing:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// first is the key that is shared first: links of links are links to the first all the same.
func (h *holding) first() string {
	if len(h.keys) == 0 {
		return ""
	}
	return h.keys[0]
}

// find is the key of an object with these bytes that is there now, else "".
func (k *known) find(c content) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h := k.by[c]; h != nil {
		return h.first()
	}
	return ""
}

// has reports whether the object still has these bytes.
func (k *known) has(c content, key string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	got, ok := k.keyed[key]
	return ok && got == c
}

// sizes are those of the files that are known to be stored.
func (k *known) sizes() map[int64]bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	sizes := make(map[int64]bool)
	for c := range k.by {
		sizes[c.size] = true
	}
	return sizes
}

// tryClaim is claim for a caller that must not wait: false when there is such an object, or will be.
func (k *known) tryClaim(c content) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.by[c] != nil {
		return false
	}
	k.by[c] = &holding{storing: make(chan struct{})}
	return true
}

// settle says what came of a claim.
func (k *known) settle(c content, key string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.by[c]
	close(h.storing)
	h.storing = nil
	if err == nil {
		k.offerLocked(c, key)
	} else if len(h.keys) == 0 {
		delete(k.by, c)
	}
}

// forget drops an object that goes, or gets other bytes.
func (k *known) forget(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forgetLocked(key)
}

// forgetAll drops the files of a revision.
func (k *known) forgetAll(ref Ref) {
	prefix := ref.FileKey("")
	k.mu.Lock()
	defer k.mu.Unlock()
	for key := range k.keyed {
		if strings.HasPrefix(key, prefix) {
			k.forgetLocked(key)
		}
	}
}

func (k *known) forgetLocked(key string) {
	c, ok := k.keyed[key]
	if !ok {
		return
	}
	delete(k.keyed, key)
	h := k.by[c]
	if h.keys = slices.DeleteFunc(h.keys, func(other string) bool { return other == key }); len(h.keys) == 0 && h.storing == nil {
		delete(k.by, c)
	}
}
