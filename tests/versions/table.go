package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
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
	return append(cells, time.Now().UTC().Format(time.DateOnly))
}

// write puts the rows into the table, in place of what it has of the same servers, and the versions into the README.
func write(rows []row) error {
	var passed []string
	titled := regexp.MustCompile(`^\| (\w+ [\d.]+) \|`)
	err := between("docs/databases.md", func(old string) string {
		lines := []string{"| | " + strings.Join(suites, " | ") + " | on |", "|---" + strings.Repeat("|---", len(suites)+1) + "|"}
		known := map[string]string{} // lines by their server's title
		var titles []string
		for line := range strings.Lines(old) {
			if m := titled.FindStringSubmatch(line); m != nil {
				titles = append(titles, m[1])
				known[m[1]] = strings.TrimSpace(line)
			}
		}
		for _, r := range rows {
			if i := slices.IndexFunc(titles, r.same); i >= 0 {
				titles[i] = r.title()
			} else {
				titles = append(titles, r.title())
			}
			known[r.title()] = "| " + strings.Join(r.cells(), " | ") + " |"
		}
		for _, title := range titles {
			lines = append(lines, known[title])
			if !strings.Contains(known[title], "failed") {
				passed = append(passed, title)
			}
		}
		return strings.Join(lines, "\n")
	})
	if err != nil {
		return err
	}
	return between("README.md", func(string) string {
		return "The suites passed on " + strings.Join(passed, ", ") + " too."
	})
}

// same reports whether a title is that of another release of the server: PostgreSQL 17.12 of postgres-17.
func (s server) same(title string) bool {
	product, _, _ := strings.Cut(s.title(), " ")
	_, version, _ := strings.Cut(s.name, "-")
	return title == product+" "+version || strings.HasPrefix(title, product+" "+version+".")
}

func between(file string, text func(old string) string) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(old), begin)
	between, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		return fmt.Errorf("%s: the marks %q and %q are not there", file, strings.TrimSpace(begin), end)
	}
	return os.WriteFile(file, []byte(before+begin+text(between)+"\n"+end+after), 0o644) //nolint:gosec // a document
}
