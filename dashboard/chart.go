package dashboard

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// point is a figure at one time.
type point struct {
	at    time.Time
	value float64
}

// chart is a figure over time: a line in a box with its own units, and a table for those who do not
// see the line.
type chart struct {
	ID    string
	Title string
	Now   string // the last figure
	Tone  string // a class: "", "bad", "calm"
	Top   string // the value at the upper edge
	Since string // the time at the left edge
	Line  string // of an SVG path
	Area  string
	Rows  []chartRow
}

type chartRow struct {
	At    time.Time
	Value string
}

// The box of a line. The page stretches it to fit.
const (
	boxWidth  = 300.0
	boxHeight = 72.0
)

// draw draws points from since until now. It formats figures with say.
func draw(id, title, tone string, points []point, since, now time.Time, say func(float64) string) chart {
	c := chart{ID: id, Title: title, Tone: tone, Now: "–", Since: age(now.Sub(since)) + " ago"}
	if len(points) == 0 {
		return c
	}
	c.Now = say(points[len(points)-1].value)
	if len(points) == 1 {
		return c // no line yet
	}
	top := 0.0
	for _, p := range points {
		top = max(top, p.value)
	}
	c.Top = say(top)
	c.Line, c.Area = trace(points, since, now, nice(top))
	for i, p := range points {
		if i%max(1, len(points)/mostRows) == 0 {
			c.Rows = append(c.Rows, chartRow{p.at, say(p.value)})
		}
	}
	return c
}

// mostRows is about how many rows the table of a chart has.
const mostRows = 20

// trace returns the line through points and the area below it.
func trace(points []point, since, now time.Time, top float64) (line, area string) {
	width := now.Sub(since).Seconds()
	x := func(t time.Time) float64 {
		return math.Min(boxWidth, math.Max(0, t.Sub(since).Seconds()/width*boxWidth))
	}
	var b strings.Builder
	for i, p := range points {
		command := "L"
		if i == 0 {
			command = "M"
		}
		fmt.Fprintf(&b, "%s%.1f %.1f", command, x(p.at), boxHeight-p.value/top*(boxHeight-2))
	}
	line = b.String()
	first, last := x(points[0].at), x(points[len(points)-1].at)
	return line, fmt.Sprintf("%sL%.1f %.1fL%.1f %.1fZ", line, last, boxHeight, first, boxHeight)
}

// nice returns a round figure above top, so that lines do not touch the edge.
func nice(top float64) float64 {
	if top <= 0 {
		return 1
	}
	return top * 1.1
}

// spark returns a small line for a table row.
func spark(points []point, since, now time.Time) string {
	if len(points) < 2 {
		return ""
	}
	top := 0.0
	for _, p := range points {
		top = max(top, p.value)
	}
	line, _ := trace(points, since, now, nice(top))
	return line
}
