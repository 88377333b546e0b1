package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
)

// warnings shows the user what the Store reports as an error, such as messages that wait for a discarded one, or a
// subscriber, such as a lost connection.
type warnings struct {
	watermill.NopLogger
	app    *app
	fields watermill.LogFields
}

func (w warnings) Error(msg string, err error, fields watermill.LogFields) {
	fields = w.fields.Add(fields)
	var about []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		text := oneLine(fmt.Sprint(fields[name]))
		if name == "aggregate" || name == "message_id" {
			text = keyText(fmt.Sprint(fields[name]))
		}
		about = append(about, name+" "+text)
	}
	text := ""
	if len(about) > 0 {
		text = " (" + strings.Join(about, ", ") + ")"
	}
	w.app.notef("%s: %s%s\n", msg, spoken(err), text)
}

// With returns warnings with these fields.
func (w warnings) With(fields watermill.LogFields) watermill.LoggerAdapter {
	w.fields = w.fields.Add(fields)
	return w
}
