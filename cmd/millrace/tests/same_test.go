package tests_test

import "regexp"

// differing is what two runs, or two databases, print differently, by what stands for it.
var differing = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z`), "2026-01-02T03:04:05.678Z"},
	{regexp.MustCompile(`(_seconds": )[\d.]+`), "${1}7"},
	{regexp.MustCompile(`Rows: .*(\n  .*)*`), "Rows: …"},
	{regexp.MustCompile(`"rows": -?\d+,\n(\s+)"estimated": \w+`), "\"rows\": 7,\n${1}\"estimated\": true"},
	{regexp.MustCompile(`( paused by .*\d) +\d+m?s\n`), "${1}       1s\n"},
	{regexp.MustCompile(`(Nothing was \w+ in ).*(\. To go on)`), "${1}ada@db/shop${2}"},
	{regexp.MustCompile(`go1\.\S+`), "go1.x"},
}

// same returns text without what differs.
func same(text string) string {
	for _, d := range differing {
		text = d.pattern.ReplaceAllString(text, d.instead)
	}
	return text
}
