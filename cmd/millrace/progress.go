package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/millrace-go/millrace/inbox/admin"
)

// progress is a progress bar, shown on a terminal only. The zero value shows nothing.
type progress struct {
	app   *app
	what  string
	total admin.Count // 0: not known
	began time.Time
	drawn time.Time
}

// progress starts a bar if diagnostics go to a terminal.
func (a *app) progress(what string, total admin.Count) *progress {
	if !a.terminal {
		return &progress{}
	}
	return &progress{app: a, what: what, total: total, began: time.Now()}
}

// at draws the bar, a few times a second.
func (p *progress) at(done int) {
	const often = 100 * time.Millisecond
	if p.app == nil || time.Since(p.drawn) < often && done < p.total.N {
		return
	}
	p.drawn = time.Now()
	p.app.notef("\r%s\x1b[K", p.line(done))
}

func (p *progress) line(done int) string {
	const width = 30
	rate := float64(done) / max(time.Since(p.began).Seconds(), 0.001)
	if p.total.N == 0 {
		return fmt.Sprintf("%s %d, %.0f/s", p.what, done, rate)
	}
	filled := min(width*done/p.total.N, width)
	line := fmt.Sprintf("%s [%s%s] %d of %s, %.0f/s", p.what, strings.Repeat("#", filled),
		strings.Repeat("-", width-filled), done, p.total, rate)
	if left := p.total.N - done; done > 0 && left > 0 {
		line += ", " + span(time.Duration(float64(left)/rate*float64(time.Second))) + " left"
	}
	return line
}

// end leaves the line as it is.
func (p *progress) end() {
	if p.app != nil && !p.drawn.IsZero() {
		p.app.notef("\n")
	}
}
