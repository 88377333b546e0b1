package main

// paint returns text in a style, where results go to a terminal that shows styles.
func (a *app) paint(style, text string) string {
	if !a.screen || a.env("NO_COLOR") != "" || a.env("TERM") == "dumb" {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

func (a *app) dim(text string) string { return a.paint("2", text) }

func (a *app) bad(text string) string { return a.paint("31", text) }

func (a *app) warn(text string) string { return a.paint("33", text) }

func (a *app) good(text string) string { return a.paint("32", text) }
