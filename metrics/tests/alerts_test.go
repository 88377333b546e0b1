package tests_test

import (
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// Each alert fires for a real cause and resolves when that is mended, within the time that its rule
// says, and no other fires. The causes are there before the first scrape, as they are in a process
// that meets its trouble at once: the series of what happened once begin with 1.
func TestEachAlertFiresAndResolves(t *testing.T) {
	testdb.OneIn(t, 2)
	t.Parallel()
	if testing.Short() {
		t.Skip("-short runs no servers")
	}
	registry := prometheus.NewPedanticRegistry()
	jobs := newServices(t, registry)
	rules, says := shortened(t)
	wants := make(map[string]string) // the alerts, by all that they say
	var mends []func()
	for _, x := range troubles {
		for _, alert := range x.fires {
			wants[strings.TrimSpace(alert+" "+x.job+" "+x.consumer)] = alert
		}
		if x.cause != nil {
			mends = append(mends, x.cause(jobs[x.job], x.consumer))
		}
	}
	assert.Equal(t, slices.Sorted(maps.Keys(says)), slices.Compact(slices.Sorted(maps.Values(wants))), "each alert has a cause")
	p := servers.Prometheus(t, exposes(t, registry), rules)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Equal(c, slices.Sorted(maps.Keys(wants)), slices.Sorted(maps.Keys(fired(c, p, "min"))))
	}, rig.Patience, 250*time.Millisecond)
	scraped := seen(t, p, "min", "millrace_inbox_up")["shop"]
	for alert, at := range seen(t, p, "min", "ALERTS") {
		assert.Less(t, at.Sub(scraped), says[wants[alert]].begins+slack, "%s was noticed too late", alert)
	}
	readable(t, p)
	understood(t, p)

	for _, mend := range mends {
		mend()
	}
	mended := time.Now()
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Empty(c, alerts(c, p, "firing")) }, rig.Patience, 250*time.Millisecond)
	for alert, at := range fired(t, p, "max") {
		if assert.Contains(t, wants, alert, "it fired for something else") {
			assert.Less(t, at.Sub(mended), says[wants[alert]].ends+slack, "%s resolved too late", alert)
		}
	}
}

// slack is what a busy machine may add.
const slack = 20 * time.Second

// exposes serves what was gathered last, so that a busy machine does not end a scrape, which must not
// take longer than the pause between two.
func exposes(t *testing.T, registry *prometheus.Registry) (address string) {
	t.Helper()
	handler := promhttp.HandlerFor(prometheus.GathererFunc(latest(t, registry.Gather)), promhttp.HandlerOpts{DisableCompression: true})
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// latest returns a function that returns what another one, which is called again and again, returned last.
func latest[T any](t *testing.T, gather func() (T, error)) func() (T, error) {
	t.Helper()
	var last atomic.Pointer[T]
	gathered := make(chan struct{})
	t.Cleanup(again(t, 500*time.Millisecond, func() {
		found, err := gather()
		if assert.NoError(t, err) && last.Swap(&found) == nil {
			close(gathered)
		}
	}))
	<-gathered
	return func() (T, error) { return *last.Load(), nil }
}

// times are how long it may take until Prometheus begins to wait for a rule's duration, and until the alert
// resolves once its cause is mended.
type times struct{ begins, ends time.Duration }

// factors shorten the rules: the durations of one unit keep their ratios. Seconds are ages of what waits, which a busy
// machine must not reach by itself.
var factors = map[string]time.Duration{"s": time.Second / 120, "m": time.Minute / 120, "h": time.Hour / 900}

var (
	numbers = regexp.MustCompile(`\b\d[\w.]*`)
	long    = regexp.MustCompile(`^(\d+)([a-z])$`)
)

// shortened returns the rules of alerts.yml with shorter durations, and what they say then.
func shortened(t *testing.T) (rules string, says map[string]times) {
	t.Helper()
	text, err := os.ReadFile("../alerts.yml")
	require.NoError(t, err)
	var file struct {
		Groups []struct {
			Name  string
			Rules []map[string]any
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &file))
	says = make(map[string]times)
	for _, g := range file.Groups {
		for _, rule := range g.Rules {
			var x times
			expr, _ := rule["expr"].(string)
			rule["expr"] = shorten(t, expr, &x)
			if wait, waits := rule["for"].(string); waits {
				rule["for"] = fmt.Sprintf("%dms", quick(t, wait).Milliseconds())
			}
			says[rule["alert"].(string)] = x
		}
	}
	short, err := yaml.Marshal(map[string]any{"groups": file.Groups})
	require.NoError(t, err)
	return string(short), says
}

// shorten shortens the durations of an expression: ranges and offsets have a unit, thresholds are
// numbers of seconds. It notes in x how long they are.
func shorten(t *testing.T, expr string, x *times) string {
	t.Helper()
	return numbers.ReplaceAllStringFunc(expr, func(n string) string {
		if long.MatchString(n) {
			d := quick(t, n)
			x.ends = max(x.ends, d)
			return fmt.Sprintf("%dms", d.Milliseconds())
		}
		value, err := strconv.ParseFloat(n, 64)
		require.NoError(t, err, "%s: what is %s?", expr, n)
		if value <= 1 {
			return n
		}
		require.True(t, strings.Contains(expr, "_seconds"), "%s: what is %s?", expr, n)
		d := quick(t, n+"s")
		if hours := int(value) / 3600; hours > 0 {
			d = quick(t, strconv.Itoa(hours)+"h")
		}
		x.begins = max(x.begins, d)
		return strconv.FormatFloat(d.Seconds(), 'f', -1, 64)
	})
}

// quick is a duration of the rules, shortened.
func quick(t *testing.T, duration string) time.Duration {
	t.Helper()
	parts := long.FindStringSubmatch(duration)
	require.NotNil(t, parts, "what is %s?", duration)
	require.Contains(t, factors, parts[2], "what is %s?", duration)
	n, err := strconv.Atoi(parts[1])
	require.NoError(t, err)
	return time.Duration(n) * factors[parts[2]]
}
