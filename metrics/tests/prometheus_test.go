package tests_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/servers"
)

// understood sends Prometheus each query of the Grafana dashboard, as Grafana fills them in.
func understood(t *testing.T, prometheus *servers.Server) {
	t.Helper()
	text, err := os.ReadFile("../dashboard.json")
	require.NoError(t, err)
	queries := regexp.MustCompile(`"(?:expr|query)": ("(?:[^"\\]|\\.)*")`).FindAllSubmatch(text, -1)
	require.Greater(t, len(queries), 50)
	filled := strings.NewReplacer("$__rate_interval", "1m", "$job", ".*", "$consumer", ".*")
	for _, q := range queries {
		var expr string
		require.NoError(t, json.Unmarshal(q[1], &expr))
		if values, found := strings.CutPrefix(expr, "label_values("); found {
			expr = values[:strings.LastIndex(values, ",")]
		}
		var answer struct{ Status, Error string }
		get(t, prometheus.URL()+"/api/v1/query?query="+url.QueryEscape(filled.Replace(expr)), &answer)
		assert.Equal(t, "success", answer.Status, "%s: %s", expr, answer.Error)
	}
}

type alert struct {
	State       string
	Labels      map[string]string
	Annotations map[string]string
}

func alerts(t require.TestingT, prometheus *servers.Server, state string) (all []alert) {
	var answer struct{ Data struct{ Alerts []alert } }
	get(t, prometheus.URL()+"/api/v1/alerts", &answer)
	for _, a := range answer.Data.Alerts {
		if a.State == state {
			all = append(all, a)
		}
	}
	return all
}

// fired returns when each alert fired first, or last, as [seen] does.
func fired(t require.TestingT, prometheus *servers.Server, first string) map[string]time.Time {
	return seen(t, prometheus, first, `ALERTS{alertstate="firing"}`)
}

// seen returns when series had their first value, or their last one, by alert, job and consumer. First is "min" or
// "max".
func seen(t require.TestingT, prometheus *servers.Server, first, series string) map[string]time.Time {
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	query := first + " by (alertname, job, consumer) (" + first + "_over_time(timestamp(" + series + ")[10m:500ms]))"
	get(t, prometheus.URL()+"/api/v1/query?query="+url.QueryEscape(query), &answer)
	all := make(map[string]time.Time)
	for _, r := range answer.Data.Result {
		text, _ := r.Value[1].(string)
		seconds, err := strconv.ParseFloat(text, 64)
		require.NoError(t, err)
		all[strings.TrimSpace(r.Metric["alertname"]+" "+r.Metric["job"]+" "+r.Metric["consumer"])] = time.UnixMilli(int64(seconds * 1000))
	}
	return all
}

// readable expects that what fires says what it is about.
func readable(t *testing.T, prometheus *servers.Server) {
	t.Helper()
	for _, a := range alerts(t, prometheus, "firing") {
		summary := a.Annotations["summary"]
		assert.NotContains(t, summary, "template")
		assert.NotRegexp(t, `\d{4,}d`, summary, "decades")
		if a.Labels["alertname"] == "MillraceParked" && a.Labels["consumer"] == "parking" {
			assert.Equal(t, "warn", a.Labels["severity"])
			assert.Contains(t, a.Annotations["runbook_url"], "#millraceparked")
			assert.Equal(t, "parking: 1 messages are parked and wait for an operator", summary)
		}
	}
}

func get(t require.TestingT, from string, into any) {
	response, err := http.Get(from) //nolint:noctx,gosec // it is local
	require.NoError(t, err)
	defer response.Body.Close() //nolint:errcheck // it was read
	require.NoError(t, json.NewDecoder(response.Body).Decode(into))
}
