package tests_test

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
)

// A Prometheus scrapes the example with the rules as they are, but that a parked message need
// not be parked for a minute: the alert fires when one is, and nothing fires before.
func TestAParkedMessageFiresTheAlert(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short runs no servers")
	}
	service := startExample(t)
	prometheus := servers.Prometheus(t, service, quick(t, "MillraceParked"))
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Equal(c, "1", query(c, prometheus, `count(millrace_inbox_up == 1)`), "it is scraped")
	}, rig.Patience, 50*time.Millisecond)
	pay(t, service, "ann")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Equal(c, "1", query(c, prometheus, `sum(millrace_inbox_completed_total)`))
	}, rig.Patience, 50*time.Millisecond)
	assert.Empty(t, alerts(t, prometheus, "firing"), "all is well")
	understood(t, prometheus)

	pay(t, service, "nobody")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		fired := alerts(c, prometheus, "firing")
		if assert.Len(c, fired, 1) {
			assert.Equal(c, "MillraceParked", fired[0].Labels["alertname"])
			assert.Equal(c, "accounts", fired[0].Labels["consumer"])
			assert.Equal(c, "warn", fired[0].Labels["severity"])
			assert.Contains(c, fired[0].Annotations["runbook_url"], "#millraceparked")
			assert.Equal(c, "accounts: 1 messages are parked and wait for an operator", fired[0].Annotations["summary"])
		}
	}, rig.Patience, 50*time.Millisecond)
}

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

// startExample builds and runs the example, and returns where it listens.
func startExample(t *testing.T) (address string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "metrics")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	build.Dir = "../../_examples/metrics"
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as rig.Build, so that nothing is compiled twice
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	service := exec.Command(program, "-serve") //nolint:noctx // it is told to end in order
	service.Stderr = os.Stderr
	printed, err := service.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, service.Start())
	t.Cleanup(func() {
		assert.NoError(t, service.Process.Signal(os.Interrupt))
		assert.NoError(t, service.Wait(), "it ends in order")
	})
	line, err := bufio.NewReader(printed).ReadString('\n')
	require.NoError(t, err)
	address, found := strings.CutPrefix(strings.TrimSpace(line), "metrics: http://")
	require.True(t, found, line)
	return strings.TrimSuffix(address, "/metrics")
}

func pay(t *testing.T, service, account string) {
	t.Helper()
	response, err := http.PostForm("http://"+service+"/pay", url.Values{"account": {account}}) //nolint:noctx // it is local
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)
}

// quick returns the rules, with one that fires at once.
func quick(t *testing.T, alert string) string {
	t.Helper()
	text, err := os.ReadFile("../alerts.yml")
	require.NoError(t, err)
	before, after, found := strings.Cut(string(text), "- alert: "+alert+"\n")
	require.True(t, found)
	after = strings.Replace(after, "for: 1m", "for: 1s", 1)
	return before + "- alert: " + alert + "\n" + after
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

// query returns the one value that a query has, and "" if it has none.
func query(t require.TestingT, prometheus *servers.Server, text string) string {
	var answer struct {
		Data struct{ Result []struct{ Value [2]any } }
	}
	get(t, prometheus.URL()+"/api/v1/query?query="+url.QueryEscape(text), &answer)
	if len(answer.Data.Result) != 1 {
		return ""
	}
	value, _ := answer.Data.Result[0].Value[1].(string)
	return value
}

func get(t require.TestingT, from string, into any) {
	response, err := http.Get(from) //nolint:noctx,gosec // it is local
	require.NoError(t, err)
	defer response.Body.Close() //nolint:errcheck // it was read
	require.NoError(t, json.NewDecoder(response.Body).Decode(into))
}
