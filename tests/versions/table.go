package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"
)

const (
	begin = "<!-- make test-versions writes this -->\n"
	end   = "<!-- to here -->"
)

// title is what people call a server, with its version.
func (s server) title() string {
	product, _, _ := strings.Cut(s.name, "-")
	number := regexp.MustCompile(`^[\d.]+`).FindString(s.version)
	return map[string]string{
		"postgres": "PostgreSQL", "mysql": "MySQL", "mariadb": "MariaDB", "rabbitmq": "RabbitMQ", "nats": "NATS", "redis": "Redis",
	}[product] + " " + number
}

// cells are a line of the table.
func (r row) cells() []string {
	cells := []string{r.title()}
	for _, suite := range suites {
		switch c := r.counts[suite]; {
		case c == nil:
			cells = append(cells, "")
		case c.failed > 0:
			cells = append(cells, fmt.Sprintf("**%d of %d failed**", c.failed, c.passed+c.failed))
		default:
			cells = append(cells, fmt.Sprint(c.passed))
		}
	}
	return cells
}

// write puts the table and the versions between their marks.
func write(rows []row) error {
	day := time.Now().UTC().Format(time.DateOnly)
	lines := []string{
		"On " + day + ", how many tests of each suite passed:", "",
		"| | " + strings.Join(suites, " | ") + " |",
		"|---" + strings.Repeat("|---", len(suites)) + "|",
	}
	var clean, broken []string
	for _, r := range rows {
		lines = append(lines, "| "+strings.Join(r.cells(), " | ")+" |")
		if strings.Contains(lines[len(lines)-1], "failed") {
			broken = append(broken, r.title())
		} else {
			clean = append(clean, r.title())
		}
	}
	short := "On " + day + " every test passed on " + strings.Join(clean, ", ") + "."
	if len(broken) > 0 {
		short += " Some failed on " + strings.Join(broken, ", ") + "."
	}
	if err := between("docs/databases.md", strings.Join(lines, "\n")); err != nil {
		return err
	}
	return between("README.md", short)
}

func between(file, text string) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(old), begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		return fmt.Errorf("%s: the marks %q and %q are not there", file, strings.TrimSpace(begin), end)
	}
	return os.WriteFile(file, []byte(before+begin+text+"\n"+end+after), 0o644) //nolint:gosec // a document
}
