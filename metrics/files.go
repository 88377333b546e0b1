package metrics

import (
	_ "embed"
	"slices"
)

//go:embed alerts.yml
var alerts []byte

//go:embed dashboard.json
var dashboard []byte

// Alerts returns the file alerts.yml of this package: rules for Prometheus.
func Alerts() []byte { return slices.Clone(alerts) }

// Dashboard returns the file dashboard.json of this package, for Grafana.
func Dashboard() []byte { return slices.Clone(dashboard) }
