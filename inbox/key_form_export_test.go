package inbox

// Made returns the key that has these parts.
func (k Key) Made(parts ...string) (string, error) { return k.made(parts) }
