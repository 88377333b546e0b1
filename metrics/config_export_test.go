package metrics

// WithDefaults returns what the zero values stand for.
func (c Config) WithDefaults() Config {
	c.setDefaults()
	return c
}
