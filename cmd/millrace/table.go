package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/millrace-go/millrace/inbox/admin"
)

// table is text in columns. Numbers are aligned right.
type table struct {
	rows  [][]string
	paint func(string) string // paints a cell that says nothing; nil: as it is
}

func newTable(titles ...string) *table { return &table{rows: [][]string{titles}} }

func (t *table) add(cells ...any) {
	row := make([]string, 0, len(cells))
	for _, c := range cells {
		row = append(row, oneLine(fmt.Sprint(c)))
	}
	t.rows = append(t.rows, row)
}

// layout returns the width of each column, and whether it is aligned right.
func (t *table) layout() (widths []int, right []bool) {
	widths, right = make([]int, len(t.rows[0])), make([]bool, len(t.rows[0]))
	for i := range widths {
		right[i] = len(t.rows) > 1
	}
	for n, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
			if n > 0 && cell != "-" && !numeric(cell) {
				right[i] = false
			}
		}
	}
	return widths, right
}

// width returns the length of the longest line.
func (t *table) width() int {
	widths, _ := t.layout()
	sum := 2 * (len(widths) - 1)
	for _, w := range widths {
		sum += w
	}
	return sum
}

func (t *table) String() string {
	widths, right := t.layout()
	var b strings.Builder
	for _, row := range t.rows {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if t.paint != nil && (cell == "0" || cell == "-") {
				cell = t.paint(cell)
			}
			if right[i] {
				line.WriteString(pad + cell + "  ")
			} else {
				line.WriteString(cell + pad + "  ")
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

func numeric(cell string) bool {
	_, err := strconv.ParseInt(strings.TrimSuffix(cell, "+"), 10, 64)
	return err == nil
}

// oneLine makes any text fit on one line of a terminal.
func oneLine(text string) string {
	return printable(strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r == '\r' {
			return ' '
		}
		return r
	}, text))
}

// printable returns the lines of any text, without what a terminal would take for an order.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// ellipsis marks where text was cut off.
const ellipsis = "…"

// short cuts text that would fill a line.
func short(text string, most int) string {
	text = oneLine(text)
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most-1]) + ellipsis
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// stamp formats a time for people and scripts.
func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

// span formats a duration in its two largest units.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	switch d = max(d, 0); {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return pair(d, time.Minute, "m", time.Second, "s")
	case d < day:
		return pair(d, time.Hour, "h", time.Minute, "m")
	}
	return pair(d, day, "d", time.Hour, "h")
}

func pair(d, large time.Duration, largeName string, small time.Duration, smallName string) string {
	text := fmt.Sprintf("%d%s", d/large, largeName)
	if rest := d % large / small; rest > 0 {
		text += fmt.Sprintf("%d%s", rest, smallName)
	}
	return text
}

// count is a number that may be "at least", in JSON.
type count struct {
	N       int  `json:"n"`
	AtLeast bool `json:"at_least,omitempty"`
}

func countOf(c admin.Count) count { return count{c.N, c.AtLeast} }

func seconds(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }

// since returns a time for JSON, nil for none.
func since(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	text := stamp(t)
	return &text
}
