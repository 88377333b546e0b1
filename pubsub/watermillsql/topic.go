package watermillsql

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// watermill-sql begins the names of a topic's tables with these prefixes.
const (
	messagesPrefix = "watermill_"
	offsetsPrefix  = "watermill_offsets_"
)

var topicName = regexp.MustCompile(`^[A-Za-z0-9$:._-]+$`)

// checkTopic refuses names with which two topics would share a table. PostgreSQL silently truncates
// long names.
func (d *database) checkTopic(topic string) error {
	most := d.maxName - len(offsetsPrefix)
	inner, begins := strings.CutPrefix(topic, strings.TrimPrefix(offsetsPrefix, messagesPrefix))
	var problem string
	switch {
	case topic == "":
		problem = "it is empty"
	case !topicName.MatchString(topic):
		problem = "it may have only ASCII letters, digits and -$:._"
	case len(topic) > most:
		problem = fmt.Sprintf("it has %d characters, and its table's name, %s…, has room for %d: "+
			"longer topics that begin alike would share a table; choose a shorter name", len(topic), offsetsPrefix, most)
	case begins:
		problem = fmt.Sprintf("its table would be the table of offsets of topic %q; choose another beginning", inner)
	default:
		return nil
	}
	return fmt.Errorf("%w: topic %q: %s", ErrTopic, topic, problem)
}

// checkCase refuses names with which two topics would share a table on a MySQL with this
// lower_case_table_names.
func checkCase(topic string, lower int) error {
	if lower == 0 || strings.ToLower(topic) == topic {
		return nil
	}
	return fmt.Errorf("%w: topic %q: it has upper-case letters, and lower_case_table_names of the server is %d, "+
		"so that it would share its table with topic %q; choose that one", ErrTopic, topic, lower, strings.ToLower(topic))
}

func (d *database) checkTopics(topics []string) error {
	var problems []error
	for _, t := range topics {
		if err := d.checkTopic(t); err != nil {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

func (d *database) messages(topic string) string { return d.quoted(messagesPrefix + topic) }
func (d *database) offsets(topic string) string  { return d.quoted(offsetsPrefix + topic) }
func (d *database) quoted(name string) string    { return d.quote + name + d.quote }
