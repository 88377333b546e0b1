package dashboard

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/steady"
	"github.com/millrace-go/millrace/outbox"
)

// Config is how a [Handler] behaves. With the zero value it shows the inbox, and changes
// nothing.
type Config struct {
	// Outbox is shown, and its parked messages tried again or discarded. Defaults to none.
	Outbox *outbox.Publisher

	// Redeliver sends a message that is to be tried again back to its topic, where no queue
	// delivers what is stored for its consumer; see Admin.Retry. Defaults to none: such
	// a message cannot be tried again from here.
	Redeliver message.Publisher

	// Operator says who sent a request, for the audit table; "" is nobody, who may change
	// nothing. The handler authenticates no one: this is what the code around it found out.
	// Defaults to nobody.
	Operator func(*http.Request) string

	// ReadOnly shows no actions and refuses them.
	ReadOnly bool

	// Prefix is the path under which the handler is reached, such as "/admin/messages".
	// Defaults to that of the http.ServeMux pattern it was registered with, or else to none,
	// which is right behind http.StripPrefix.
	Prefix string

	// Budget is how long one request works through many messages before it asks whether to
	// go on. Defaults to 3 seconds, below the timeouts of proxies.
	Budget time.Duration

	// Logger hears of requests that failed. Defaults to that of the store.
	Logger watermill.LoggerAdapter
}

func (c *Config) setDefaults(logger watermill.LoggerAdapter) {
	if c.Budget == 0 {
		c.Budget = 3 * time.Second
	}
	if c.Logger == nil {
		c.Logger = logger
	}
	c.Logger = steady.Logger(c.Logger, nil)
	c.Prefix = strings.TrimSuffix(c.Prefix, "/")
}

// Validate returns every problem of c at once.
func (c Config) Validate() error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if c.Prefix != "" && !strings.HasPrefix(c.Prefix, "/") {
		problem("Prefix %q does not begin with a slash", c.Prefix)
	}
	if c.Budget < 0 {
		problem("Budget %v is negative", c.Budget)
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("dashboard: invalid Config: %w", err)
	}
	return nil
}
