package master

// LinkKeys lists the keys of one page, of all tenants, that share the bytes of another and whose bytes are on the SSD
// tier.
func (m *Master) LinkKeys(n uint32) (out []Key) {
	m.survey(n, func(r Ref, seen *record) {
		if stateOf(seen.word) != Committed || seen.word&FlagLink == 0 {
			return
		}
		s := m.index.shardOf(seen.hash)
		s.mu.Lock()
		defer s.mu.Unlock()
		rec := m.mem.at(r)
		if s.holds(seen.hash, r) && rec.gen == seen.gen && loadWord(rec)&FlagLink != 0 && loadWord(m.mem.at(rec.target))&FlagSSD != 0 {
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
