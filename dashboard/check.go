package dashboard

import (
	"time"

	"github.com/millrace-go/millrace/inbox"
)

// checks caches the findings, because each check reads the server's settings and claims a key.
type checks struct {
	turn  turn
	at    time.Time
	found []inbox.Finding
}

// checkFor is how long the findings are cached.
const checkFor = 30 * time.Second

// checkPage lists the findings.
type checkPage struct {
	Findings []inbox.Finding
	At       time.Time
}

func (h *Handler) check(v *visit) (any, error) {
	c := &h.checks
	if err := c.turn.take(v.r.Context()); err != nil {
		return nil, err
	}
	defer c.turn.give()
	if time.Since(c.at) > checkFor {
		found, err := h.store.Check(v.r.Context())
		if err != nil {
			return nil, err
		}
		c.found, c.at = found, time.Now().UTC()
	}
	return &checkPage{c.found, c.at}, nil
}
