package suite

// Tail is a writer that keeps the end of what is written to it.
type Tail struct {
	Text  []byte
	Limit int // bytes that are kept
}

// Write implements io.Writer and never fails.
func (t *Tail) Write(p []byte) (int, error) {
	t.Text = append(t.Text, p...)
	t.Text = t.Text[max(0, len(t.Text)-t.Limit):]
	return len(p), nil
}
