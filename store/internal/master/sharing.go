package master

// LinkKeys lists the keys of one page, of all tenants, that share the bytes of another and whose bytes are on the SSD
// tier.
func (m *Master) LinkKeys(n uint32) (out []Key) {
	m.pool.records(n, func(r Ref, rec *record) {
		if w := loadWord(rec); stateOf(w) != Committed || w&FlagLink == 0 {
			return
		}
		h, ok := m.peek(r, rec.gen)
		if !ok {
			return
		}
		s := m.index.shardOf(h)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.holds(h, r) && loadWord(rec)&FlagLink != 0 && loadWord(m.mem.at(rec.target))&FlagSSD != 0 {
			out = append(out, m.keyOf(r, rec))
		}
	})
	return out
}

// Links lists the keys that share the bytes of an object, which may be held for them alone. A link made after the
// object got its SSD replica knows of it by itself; this is for those that are older.
func (m *Master) Links(r Ref, gen uint64) (names []string) {
	h, ok := m.peek(r, gen)
	if !ok {
		return nil
	}
	s := m.index.shardOf(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !m.isObject(s, h, r, gen) {
		return nil
	}
	for l := m.mem.at(r).chain; l != 0; {
		rec := m.mem.at(l)
		names = append(names, string(m.mem.name(l, rec)))
		l = rec.chain
	}
	return names
}
