package main

import (
	"io"
	"strings"
)

// page is one screenful.
type page struct{ text string }

func (p *page) Write(b []byte) (int, error) {
	p.text += string(b)
	return len(b), nil
}

// repaint overwrites the page before: from the top, each line to its end, with nothing left below.
func (p *page) repaint(to io.Writer) {
	const home, toEndOfLine, toEndOfScreen = "\x1b[H", "\x1b[K", "\x1b[J"
	_, _ = io.WriteString(to, home+strings.ReplaceAll(p.text, "\n", toEndOfLine+"\n")+toEndOfScreen)
}
