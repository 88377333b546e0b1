package policy

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// alertRule is a Prometheus alert rule.
type alertRule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// alertGroup holds the rules of one consumer.
type alertGroup struct {
	Name  string      `yaml:"name"`
	Rules []alertRule `yaml:"rules"`
}

// AlertRules returns a Prometheus rules file. It has a rule for each threshold in a consumer's
// Alerts and, unless p is strict, a rule for each threshold of Defaults that covers all other
// consumers. The rules query the metrics of package metrics; namespace is its Config.Namespace, and
// empty means its default.
func (p Policy) AlertRules(namespace string) []byte {
	a := alerts{metrics: cmp.Or(namespace, "millrace") + "_inbox_"}
	groups := []alertGroup{}
	var named []string
	for _, handler := range slices.Sorted(maps.Keys(p.Consumers)) {
		rules, _ := p.For(handler)
		consumer := cmp.Or(rules.Consumer, handler)
		named = append(named, regexp.QuoteMeta(consumer))
		groups = append(groups, alertGroup{"millrace-policy-" + handler, a.of(rules, "consumer="+strconv.Quote(consumer))})
	}
	if !p.Strict {
		others := `consumer!~` + strconv.Quote(strings.Join(named, "|"))
		groups = append(groups, alertGroup{"millrace-policy", a.of(Rules{}.or(p.Defaults), others)})
	}
	groups = slices.DeleteFunc(groups, func(g alertGroup) bool { return len(g.Rules) == 0 })

	var file bytes.Buffer
	file.WriteString("# Made by millrace policy alerts from the thresholds of a policy: change those instead.\n")
	to := yaml.NewEncoder(&file)
	to.SetIndent(2)
	if err := to.Encode(map[string]any{"groups": groups}); err != nil {
		panic(err) // cannot happen: file has only strings
	}
	return file.Bytes()
}

// alerts makes rules for metrics with this prefix.
type alerts struct{ metrics string }

// of returns the rules for the consumers that the label matcher which selects.
func (a alerts) of(r Rules, which string) (rules []alertRule) {
	const lasts, share = "5m", "10m"
	add := func(name, severity, lasts, page, summary, expr string, args ...any) {
		rules = append(rules, alertRule{
			Alert: "MillracePolicy" + name, Expr: fmt.Sprintf(expr, args...), For: lasts,
			Labels: map[string]string{"severity": severity},
			Annotations: map[string]string{
				"summary":     "{{ $labels.consumer }}: " + summary,
				"runbook_url": "https://github.com/millrace-go/millrace/blob/main/docs/" + page,
			},
		})
	}
	age := func(metric string) string {
		return fmt.Sprintf("max by (job, database, consumer) (%s%s{%s})", a.metrics, metric, which)
	}
	rate := func(metric string) string {
		return fmt.Sprintf("sum by (job, database, consumer) (rate(%s%s{%s}[%s]))", a.metrics, metric, which, share)
	}
	t := r.Alerts
	if t.PendingAge > 0 {
		add("PendingAge", "warn", lasts, "runbook.md#millracependingage", "a stored message has waited {{ $value | humanizeDuration }} for a handler",
			"%s > %s", age("oldest_pending_age_seconds"), inSeconds(t.PendingAge))
	}
	if t.HeldAge > 0 {
		add("HeldAge", "page", lasts, "runbook.md#millracesequencegap", "a message has waited {{ $value | humanizeDuration }} for its predecessor",
			"%s > %s", age("oldest_held_age_seconds"), inSeconds(t.HeldAge))
	}
	if t.Parked != nil {
		add("Parked", "warn", "1m", "runbook.md#millraceparked", "{{ $value }} messages wait for an operator",
			`sum by (job, database, consumer) (max by (job, database, consumer, state) (%smessages{%s, state=~"parked|failed_terminal"})) > %d`,
			a.metrics, which, *t.Parked)
	}
	if t.Duplicates > 0 {
		add("Duplicates", "warn", share, "runbook.md#millraceduplicatespike", "{{ $value | humanizePercentage }} of the deliveries are copies",
			"%s / %s > %v", rate("duplicates_total"), rate("received_total"), t.Duplicates)
	}
	if t.Gaps > 0 {
		add("Gaps", "warn", share, "policy-file.md#millracepolicygaps", "{{ $value | humanizePercentage }} of the deliveries come before their predecessor",
			"%s / %s > %v", rate("gaps_total"), rate("received_total"), t.Gaps)
	}
	if t.Failures > 0 {
		failed := rate("failures_total")
		add("Failures", "warn", share, "policy-file.md#millracepolicyfailures", "{{ $value | humanizePercentage }} of the runs of the handler fail",
			"%s / (%s + %s) > %v", failed, failed, rate("completed_total"), t.Failures)
	}
	return rules
}

func inSeconds(d Duration) string {
	return strconv.FormatFloat(time.Duration(d).Seconds(), 'f', -1, 64)
}
