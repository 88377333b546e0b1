package inbox

// WithDefaults returns what the zero values stand for.
func (c Config) WithDefaults() Config {
	c.setDefaults()
	return c
}

// WithDefaults returns what the zero values stand for.
func (c ConsumerConfig) WithDefaults() ConsumerConfig {
	c.setDefaults()
	return c
}

// WithDefaults returns what the zero values stand for.
func (c LeaseConfig) WithDefaults() LeaseConfig {
	c.setDefaults()
	return c
}

// MaxInFlight returns how many transactions s opens at once.
func MaxInFlight(s *Store) int { return s.maxInFlight() }
