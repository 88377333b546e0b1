package metrics_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/millrace-go/millrace/tests/rig"
)

type rule struct {
	Alert       string
	Expr        string
	Labels      map[string]string
	Annotations map[string]string
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "alerts.yml")), &file))
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	require.NotEmpty(t, all)
	return all
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

var (
	selector = regexp.MustCompile(`\b(millrace_[a-z_]+)(\{[^}]*\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+)=~?"([^"]*)"`)
	grouping = regexp.MustCompile(`\bby \(([^)]*)\)`)
	legend   = regexp.MustCompile(`\{\{([a-z_]+)\}\}`)
)

// fromScraping are labels that Prometheus adds, or a service with several databases; fromBrokers those of others' metrics.
var (
	fromScraping = []string{"job", "database", "instance", "le"}
	fromBrokers  = []string{"queue", "consumergroup", "topic"}
)

// check compares a query with what the registry exposes: metrics, their labels, and the
// values that are asked for.
func check(t *testing.T, exposed map[string]map[string][]string, query string) {
	t.Helper()
	labels := map[string]bool{}
	for _, s := range selector.FindAllStringSubmatch(query, -1) {
		known, found := exposed[s[1]]
		if !assert.True(t, found, "%s is not exposed: %s", s[1], query) {
			continue
		}
		for label := range known {
			labels[label] = true
		}
		for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
			if slices.Contains(fromScraping, m[1]) {
				continue
			}
			if assert.Contains(t, known, m[1], "%s has no such label: %s", s[1], query) && !strings.HasPrefix(m[2], "$") {
				for value := range strings.SplitSeq(m[2], "|") {
					assert.Contains(t, known[m[1]], value, query)
				}
			}
		}
	}
	for _, by := range grouping.FindAllStringSubmatch(query, -1) {
		for label := range strings.SplitSeq(by[1], ", ") {
			known := labels[label] || slices.Contains(fromScraping, label) ||
				!strings.Contains(query, "millrace_") && slices.Contains(fromBrokers, label)
			assert.True(t, known, "no metric has the label %s: %s", label, query)
		}
	}
}

func TestAlertsAskForWhatThereIs(t *testing.T) {
	t.Parallel()
	exposed := full(t).exposed()
	for _, r := range rules(t) {
		check(t, exposed, r.Expr)
		for _, by := range grouping.FindAllStringSubmatch(r.Expr, -1) {
			assert.Regexp(t, `^job, database\b`, by[1], "%s: one database would hide another", r.Alert)
		}
		assert.Contains(t, []string{"page", "warn"}, r.Labels["severity"], r.Alert)
		assert.NotEmpty(t, r.Annotations["summary"], r.Alert)
	}
}

// TestQueriesAreChecked: the check can fail.
func TestQueriesAreChecked(t *testing.T) {
	t.Parallel()
	exposed := full(t).exposed()
	for _, query := range []string{
		`sum(millrace_inbox_gotten_total)`, `sum by (topic) (millrace_inbox_received_total)`,
		`millrace_inbox_messages{status="parked"}`, `millrace_inbox_messages{state="packed"}`,
	} {
		probe := &testing.T{}
		check(probe, exposed, query)
		assert.True(t, probe.Failed(), query)
	}
}

func TestTheDashboardAsksForWhatThereIs(t *testing.T) {
	t.Parallel()
	exposed := full(t).exposed()
	var board struct {
		Panels []struct {
			Title, Type string
			Datasource  struct{ UID string }
			Links       []struct{ URL string }
			Targets     []struct {
				Expr, LegendFormat string
				Datasource         struct{ UID string }
			}
		}
		Annotations struct{ List []struct{ Expr string } }
		Templating  struct{ List []struct{ Name, Type string } }
	}
	text := read(t, "dashboard.json")
	require.NoError(t, json.Unmarshal([]byte(text), &board))
	var alerts, rows []string
	for _, r := range rules(t) {
		alerts = append(alerts, strings.ToLower(r.Alert))
	}
	for _, a := range board.Annotations.List {
		check(t, exposed, a.Expr)
	}
	for _, p := range board.Panels {
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		assert.Equal(t, "${datasource}", p.Datasource.UID, p.Title)
		assert.NotEmpty(t, p.Targets, p.Title)
		for _, link := range p.Links {
			_, anchor, _ := strings.Cut(link.URL, "/docs/runbook.md#")
			assert.Contains(t, alerts, anchor, p.Title)
		}
		for _, target := range p.Targets {
			check(t, exposed, target.Expr)
			for _, l := range legend.FindAllStringSubmatch(target.LegendFormat, -1) {
				assert.Contains(t, target.Expr, l[1], "%s: the legend names what the query does not keep", p.Title)
			}
		}
	}
	assert.Equal(t, []string{"Now", "Throughput", "Duplicates", "Backlog", "Failures", "Outbox", "Retention", "Tables"}, rows)
	assert.Equal(t, "datasource", board.Templating.List[0].Type)
	for _, brokers := range []string{"rabbitmq_queue_messages_ready", "kafka_consumergroup_lag"} {
		assert.Contains(t, text, brokers)
	}
	for name := range exposed {
		if !strings.HasSuffix(name, "_bucket") && !strings.HasSuffix(name, "_sum") && !strings.HasSuffix(name, "_count") {
			assert.Contains(t, text, name, "a metric that no panel shows")
		}
	}
}

var section = regexp.MustCompile(`(?m)^## (Millrace\w+)$`)

// inGo is a call of the operators' side.
var inGo = regexp.MustCompile("`(ops\\.|publisher\\.|store\\.[^R])") // Store.Run is for services

func TestEachAlertHasARunbook(t *testing.T) {
	t.Parallel()
	runbook := read(t, "../docs/runbook.md")
	var sections, alerts []string
	for _, s := range section.FindAllStringSubmatch(runbook, -1) {
		sections = append(sections, s[1])
	}
	for _, r := range rules(t) {
		alerts = append(alerts, r.Alert)
		assert.True(t, strings.HasSuffix(r.Annotations["runbook_url"], "/docs/runbook.md#"+strings.ToLower(r.Alert)), r.Alert)
		_, body, _ := strings.Cut(runbook, "## "+r.Alert+"\n")
		body, _, _ = strings.Cut(body, "\n## ")
		for _, part := range []string{"\n*" + r.Labels["severity"] + "*. ", "\n**See:** ", "\n**Do:** "} {
			assert.Contains(t, body, part, r.Alert)
		}
		for _, paragraph := range strings.Split(body, "\n\n") {
			assert.True(t, !inGo.MatchString(paragraph) || strings.Contains(paragraph, "`millrace "), "who is paged writes no program:\n%s", paragraph)
			assert.NotRegexp(t, `\b(SELECT|UPDATE|DELETE FROM) `, paragraph, "nor SQL")
		}
		assert.Contains(t, read(t, "alerts_test.yml"), "name: "+r.Alert+" fires", "each alert is seen firing")
	}
	assert.Equal(t, sections, alerts)
}

func TestPromtoolAgrees(t *testing.T) {
	t.Parallel()
	rig.Promtool(t, "check", "rules", "alerts.yml")
	rig.Promtool(t, "test", "rules", "alerts_test.yml")
}
