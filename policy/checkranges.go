package policy

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/millrace-go/millrace/inbox"
)

// most is the largest integer that every database can store.
const most = math.MaxInt32

// maxName is the limit of package inbox.
const maxName = 255

// ranges reports values that are out of range.
func (c *checker) ranges(path string, r Rules) {
	for name, value := range r.fields() {
		at := path + "." + name
		if allowed, is := words[value.Type()]; is {
			c.word(at, value.String(), allowed)
		}
		switch v := value.Interface().(type) {
		case Duration:
			c.duration(at, name, v)
		case int:
			c.number(at, v)
		case *int:
			if v != nil {
				c.number(at, *v)
			}
		case float64:
			if math.IsNaN(v) || v < 0 || v >= 1 {
				c.out(at, "%v is not a share that can be exceeded: write a number from 0 to below 1, such as 0.05", v)
			}
		}
	}
	c.word(path+".key.within", r.Key.Within, withins)
	c.word(path+".former_key.within", r.FormerKey.Within, withins)
	c.name(path+".consumer", "the name", r.Consumer)
	c.sources(path, r)
}

// out reports a value that is out of range.
func (c *checker) out(at, format string, args ...any) {
	c.problem(at, format, args...)
	c.wild[at] = true
}

func (c *checker) word(at, word string, allowed []string) {
	if word != "" && !slices.Contains(allowed, word) {
		c.out(at, "%s", notAWord(word, allowed))
	}
}

func (c *checker) name(at, what, name string) {
	if len(name) > maxName {
		c.problem(at, "%s is longer than %d bytes: choose a shorter one", what, maxName)
	}
}

func (c *checker) number(at string, n int) {
	switch {
	case n < 0:
		c.out(at, "%d is negative: write 0 or more", n)
	case n > most:
		c.out(at, "%d is more than %d: write less", n, most)
	}
}

func (c *checker) duration(at, name string, d Duration) {
	switch {
	case d == Forever && name == "window":
		c.out(at, "forever is not a window: leave it out, and write retention: forever if messages may always be redelivered")
	case d == Forever && name != "retention":
		c.out(at, "forever is allowed for retention alone: write a duration, or leave it out")
	case d < 0 && d != Forever:
		c.out(at, "%s is negative: write a positive duration", d)
	case name == "retention" && d > 0 && d < Duration(inbox.MinRetention):
		c.out(at, "%s is below %s, the minimum: write more, or forever", d, Duration(inbox.MinRetention))
	}
}

// sources reports sources that cannot serve as a key, a version or an order key.
func (c *checker) sources(path string, r Rules) {
	for _, s := range []struct {
		name, from string
		parse      func(string) error
	}{{"key.from", r.Key.From, checkKey}, {"former_key.from", r.FormerKey.From, checkKey}, {"version.from", r.Version.From, checkVersion}, {"order_key", r.OrderKey, checkKey}} {
		if err := s.parse(s.from); err != nil {
			if strings.Contains(s.from, "+") {
				err = fmt.Errorf("in %q: %w", s.from, err)
			}
			c.problem(path+"."+s.name, "%v", err)
		}
	}
	c.order(path, r.OrderKey)
	var parts []string
	for part := range strings.SplitSeq(r.Key.From, "+") {
		parts = append(parts, strings.TrimSpace(part))
	}
	within := r.Key.Within
	for _, part := range parts {
		field, is := strings.CutPrefix(part, "metadata:")
		if !is {
			continue
		}
		switch field = squeezed(field); {
		case strings.HasSuffix(field, "deliverytag"):
			c.problem(path+".key.from", "%s differs at each delivery, so no copy would be recognised: use the UUID or a field that the producer sets", part)
		case strings.HasSuffix(field, "offset"):
			c.offset(path+".key.from", part, within, parts)
		}
	}
	if slices.Contains(parts, "payload") && r.Collision != "" {
		c.problem(path+".collision", "the key is made of the payload, so two messages with one key have the same payload: leave it out")
	}
	if r.Key.Optional && (r.Key.From == "" || strings.TrimSpace(r.Key.From) == "uuid") {
		c.problem(path+".key.optional", "a message without the key takes its UUID, and the key is the UUID: leave it out, or name another key")
	}
}

// squeezed returns a field's name without separators between its words.
func squeezed(field string) string {
	return strings.NewReplacer("_", "", "-", "", ".", "").Replace(strings.ToLower(field))
}

// offset reports an offset that does not say which log it belongs to.
func (c *checker) offset(at, part, within string, parts []string) {
	has := func(word string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(squeezed(p), word) })
	}
	var missing []string
	if !has("partition") {
		missing = append(missing, "the partition, as metadata:partition+"+part)
	}
	if !has("topic") && within != "topic" {
		missing = append(missing, "the topic, as within: topic")
	}
	if len(missing) > 0 {
		c.problem(at, "%s begins anew in each log, so messages of two logs would get the same key: add %s",
			part, strings.Join(missing, " and "))
	}
}

// order reports an order key that forms no groups. One part that differs in every message is enough
// for that.
func (c *checker) order(path, from string) {
	for part := range strings.SplitSeq(from, "+") {
		switch part = strings.TrimSpace(part); part {
		case "uuid", "cloudevent":
			c.problem(path+".order_key", "%s differs in every message, so no message would wait for another: name what the messages "+
				"of one thing have in common, such as metadata:customer_id", part)
		case "payload":
			c.problem(path+".order_key", "payload groups only messages that are equal: name what the messages of one thing have in common, "+
				"such as json:customer.id")
		}
	}
}
