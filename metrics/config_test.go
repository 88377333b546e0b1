package metrics_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/metrics"
)

var field = regexp.MustCompile(`((?:\t// .*\n)+)\t(\w+) `)

// TestDefaultsAreAsTheCommentsSay compares the comments of Config with the code.
func TestDefaultsAreAsTheCommentsSay(t *testing.T) {
	t.Parallel()
	c := metrics.Config{}.WithDefaults()
	thousands := fmt.Sprintf("%d,%03d", c.CountTo/1000, c.CountTo%1000)
	says := map[string]string{
		"Namespace": fmt.Sprintf("Defaults to %q", c.Namespace),
		"Interval":  fmt.Sprintf("Defaults to %.0f seconds,", c.Interval.Seconds()),
		"Timeout":   fmt.Sprintf("Defaults to %.0f seconds,", c.Timeout.Seconds()),
		"CountTo":   "Defaults to " + thousands + ".",
		"MaxValues": fmt.Sprintf("Defaults to %d.", c.MaxValues),
		"Buckets": fmt.Sprintf("Defaults to %d from %.0f ms to %.0f s.", len(c.Buckets), 1000*c.Buckets[0],
			c.Buckets[len(c.Buckets)-1]),
		"Logger": "Defaults to none.",
	}
	for _, f := range field.FindAllStringSubmatch(read(t, "config.go"), -1) {
		if want, found := says[f[2]]; found {
			assert.Contains(t, strings.Join(strings.Fields(strings.ReplaceAll(f[1], "//", "")), " "), want, f[2])
			delete(says, f[2])
		}
	}
	assert.Empty(t, says, "no such fields")
}
