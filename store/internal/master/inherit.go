package master

// Inherited is what an object has once its reservation is committed: its own options, and for those it leaves open the
// old object's, if it replaces one. The group is fixed from Reserve on; the pins are the old object's at Commit.
type Inherited struct {
	Group     string
	SoftUntil int64
	HardPin   bool
}

func (a *Inherited) samePins(b Inherited) bool {
	return a.SoftUntil == b.SoftUntil && a.HardPin == b.HardPin
}

// Inherited is what a reservation would have if it were committed now, for the record that is written before.
func (m *Master) Inherited(r Ref, gen uint64) (Inherited, error) {
	l, h, rec, err := m.reservation(r, gen)
	if err != nil {
		return Inherited{}, err
	}
	defer l.unlock()
	_, old := m.index.sibling(m.index.shardOf(h), h, r)
	in := m.inherited(rec, old)
	if rec.group != 0 {
		in.Group = string(m.mem.name(rec.group, m.mem.at(rec.group)))
	}
	return in, nil
}

// inherited is the pins of a reservation that replaces old, which may be nil.
func (m *Master) inherited(rec, old *record) Inherited {
	in := Inherited{SoftUntil: rec.softUntil, HardPin: loadWord(rec)&FlagHardPin != 0}
	if old == nil || loadWord(rec)&FlagReplace == 0 {
		return in
	}
	in.HardPin = in.HardPin || loadWord(old)&FlagHardPin != 0
	if in.SoftUntil == 0 {
		in.SoftUntil = old.softUntil
	}
	return in
}
