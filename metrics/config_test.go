package metrics_test

import (
	"fmt"
	"testing"

	"github.com/millrace-go/millrace/metrics"
	"github.com/millrace-go/millrace/tests/rig"
)

// TestDefaultsAreAsTheCommentsSay compares the comments of Config with the code.
func TestDefaultsAreAsTheCommentsSay(t *testing.T) {
	t.Parallel()
	c := metrics.Config{}.WithDefaults()
	thousands := fmt.Sprintf("%d,%03d", c.CountTo/1000, c.CountTo%1000)
	rig.DefaultsAsCommented(t, map[string]string{
		"Config.Namespace": fmt.Sprintf("Defaults to %q", c.Namespace),
		"Config.Interval":  fmt.Sprintf("Defaults to %.0f seconds,", c.Interval.Seconds()),
		"Config.Timeout":   fmt.Sprintf("Defaults to %.0f seconds,", c.Timeout.Seconds()),
		"Config.CountTo":   "Defaults to " + thousands + ".",
		"Config.MaxValues": fmt.Sprintf("Defaults to %d.", c.MaxValues),
		"Config.Buckets": fmt.Sprintf("Defaults to %d from %.0f ms to %.0f s.", len(c.Buckets), 1000*c.Buckets[0],
			c.Buckets[len(c.Buckets)-1]),
		"Config.Logger": "Defaults to slog.Default.",
	}, [2]string{"config.go", "Config"})
}
