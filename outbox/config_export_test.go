package outbox

import "time"

// WithDefaults returns what the zero values stand for.
func (c Config) WithDefaults() Config {
	c.setDefaults()
	return c
}

// WithDefaults returns what the zero values stand for.
func (c RelayConfig) WithDefaults() RelayConfig {
	c.setDefaults()
	return c
}

// LongestBackoff returns the longest pause that can follow the n-th attempt of a message.
func (c RelayConfig) LongestBackoff(n int) (longest time.Duration) {
	p := &pump{Relay: &Relay{config: c.WithDefaults()}}
	for range 10_000 { // it is drawn by lot
		longest = max(longest, p.backoff(n))
	}
	return longest
}
