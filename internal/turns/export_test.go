package turns

// Len is how many keys are held or waited for.
func (t *Turns) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.keys)
}
