package master

// add counts a committed record, or takes it off with sign -1. An owner that stays for its links keeps its bytes
// counted: see addReplicas.
func (u *usage) add(rec *record, w uint64, sign int64) {
	u.objects[rec.kind] += sign
	if w&FlagHardPin != 0 {
		u.hardPins += sign
	}
	if w&FlagLink != 0 || sign < 0 && rec.chain != 0 {
		return
	}
	u.addReplicas(rec, w, sign)
}

func (u *usage) addReplicas(rec *record, w uint64, sign int64) {
	if w&FlagMemory != 0 {
		u.addTier(rec, TierMemory, sign)
	}
	if w&FlagSSD != 0 {
		u.addTier(rec, TierSSD, sign)
	}
}

func (u *usage) addTier(rec *record, t Tier, sign int64) {
	u.count[rec.kind][t] += sign
	u.bytes[rec.kind][t] += sign * rec.size
}

// Usage adds up the shards.
func (m *Master) Usage() Usage {
	out := Usage{Reading: max(0, m.reading.Load()), RecordMem: m.pool.used()}
	for i := range m.index.shards {
		s := &m.index.shards[i]
		s.mu.Lock()
		u := &s.usage
		for k := range Kinds {
			out.Objects[k] += u.objects[k]
			for t := range Tiers {
				out.Count[k][t] += u.count[k][t]
				out.Bytes[k][t] += u.bytes[k][t]
			}
		}
		out.HardPins += u.hardPins
		out.Groups += u.groups
		out.Reserved += u.reserved
		out.IndexMem += int64(len(s.slots())) * 8
		s.mu.Unlock()
	}
	return out
}
