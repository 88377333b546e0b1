package inbox

import "fmt"

// Bounds of the failures in a row after which Redispatch leaves a topic, or ends.
const (
	mostOfTopic = 10
	mostOfAll   = 50
)

// topics counts how often publishing to each topic has failed in a row. A topic that takes nothing must not keep those
// of other topics waiting, and a broker that is out must not be asked for each outcome.
type topics struct {
	failed  map[string]int
	inARow  int // to whatever topic
	skipped int
}

// leave reports whether the topic is to be left alone, and counts the outcome that is left then.
func (t *topics) leave(topic string) bool {
	if t.failed[topic] < mostOfTopic {
		return false
	}
	t.skipped++
	return true
}

// all reports whether nothing can be published.
func (t *topics) all() bool { return t.inARow >= mostOfAll }

// tried notes the result of publishing to topic.
func (t *topics) tried(topic string, err error) {
	if err == nil {
		delete(t.failed, topic)
		t.inARow = 0
		return
	}
	if t.failed == nil {
		t.failed = make(map[string]int)
	}
	t.failed[topic]++
	t.inARow++
}

// left says how many outcomes were not tried.
func (t *topics) left() error {
	if t.skipped == 0 {
		return nil
	}
	return fmt.Errorf("inbox: redispatch: %d outcomes to topics that failed %d times in a row were not tried", t.skipped, mostOfTopic)
}
