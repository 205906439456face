package weight

import "os"

// A directory of a store in memory leads to files that this process has open, by their numbers. If a child of it still
// uses the directory when the last Loaded is closed, the files stay open until the child is found to have ended:
// otherwise their numbers would become other files', with other bytes. The end is noticed by whoever next looks at the
// revision's users.

// linger closes the files of a directory that is gone, and keeps those of one that is not.
func (m *Manager) linger(d *directory, gone bool) error {
	if !gone {
		m.mu.Lock()
		m.mu.lingers[d.ref] = append(m.mu.lingers[d.ref], d)
		m.mu.Unlock()
		return nil
	}
	err := d.closeFiles()
	if e := m.endLinger(d.ref); err == nil {
		err = e
	}
	return err
}

// lingerName is the name of a file that a child of this process reads out of its memory, "" without one.
func (m *Manager) lingerName(ref Ref) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.mu.lingers[ref] {
		return d.inProc
	}
	return ""
}

// endLinger closes the files that were kept for users of a revision who are gone.
func (m *Manager) endLinger(ref Ref) (first error) {
	m.mu.Lock()
	list := m.mu.lingers[ref]
	delete(m.mu.lingers, ref)
	m.mu.Unlock()
	for _, d := range list {
		if err := d.closeFiles(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// endLingers ends all, and takes away the directories that now lead nowhere.
func (m *Manager) endLingers() (first error) {
	m.mu.Lock()
	all := m.mu.lingers
	m.mu.lingers = make(map[Ref][]*directory)
	m.mu.Unlock()
	for _, list := range all {
		for _, d := range list {
			_ = os.RemoveAll(d.path)
			if err := d.closeFiles(); err != nil && first == nil {
				first = err
			}
		}
	}
	return first
}
