package master

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
