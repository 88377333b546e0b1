package stored

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
)

// Serving is a consumer that a process serves.
type Serving struct {
	Consumer string `json:"consumer"`
	Epoch    int    `json:"epoch"`
	Handler  string `json:"handler,omitempty"` // unless it has the name of the consumer
	Queue    bool   `json:"queue,omitempty"`   // it delivers the stored messages of the consumer
	Gate     bool   `json:"gate,omitempty"`    // the version gate orders the messages
	Batch    bool   `json:"batch,omitempty"`   // the handler gets several messages at once
	Leases   bool   `json:"leases,omitempty"`  // under middleware.Deduplicate
}

// How names how the consumer is served.
func (s Serving) How() (how []string) {
	for _, h := range []struct {
		is   bool
		name string
	}{{s.Queue, "queue"}, {s.Gate, "version gate"}, {s.Batch, "batches"}, {s.Leases, "leases"}} {
		if h.is {
			how = append(how, h.name)
		}
	}
	return how
}

// String returns the name of the consumer, and how it is served.
func (s Serving) String() string {
	text := s.Consumer
	if s.Epoch > 0 {
		text += fmt.Sprintf(", epoch %d", s.Epoch)
	}
	if how := s.How(); len(how) > 0 {
		text += " (" + strings.Join(how, ", ") + ")"
	}
	return text
}

// Compare sorts by consumer and epoch.
func (s Serving) Compare(to Serving) int {
	return cmp.Or(strings.Compare(s.Consumer, to.Consumer), cmp.Compare(s.Epoch, to.Epoch))
}

// mostServings is how many bytes the list of consumers of a process may have.
const mostServings = 32 << 10

// EncodeServings returns as many of the consumers of a process as fit into its row.
func EncodeServings(all []Serving) string {
	for {
		text, err := json.Marshal(all)
		if err != nil {
			panic(err) // text and numbers always marshal
		}
		if len(text) <= mostServings {
			return string(text)
		}
		all = all[:len(all)/2]
	}
}

// DecodeServings returns the consumers of a process. Another program may have written the row.
func DecodeServings(text []byte) (all []Serving, err error) {
	err = json.Unmarshal(text, &all)
	return all, err
}
