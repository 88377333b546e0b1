package main

import (
	"io"
	"strings"
)

// page is what is shown at once.
type page struct{ text string }

func (p *page) Write(b []byte) (int, error) {
	p.text += string(b)
	return len(b), nil
}

// repaint writes the page over the one before: from the top, each line to its end, and
// nothing below it.
func (p *page) repaint(to io.Writer) {
	const home, toEndOfLine, toEndOfScreen = "\x1b[H", "\x1b[K", "\x1b[J"
	_, _ = io.WriteString(to, home+strings.ReplaceAll(p.text, "\n", toEndOfLine+"\n")+toEndOfScreen)
}
