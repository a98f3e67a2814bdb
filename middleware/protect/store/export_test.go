package store

// Size is how many claims and values there are.
func (m *Memory) Size() (claims, values int) {
	m.mu.Lock()
	defer m.mu.Unlock()

	for _, inbox := range m.handlers {
		claims += len(inbox.entries)
	}

	return claims, len(m.values)
}
