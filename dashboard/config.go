package dashboard

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/secret"
	"github.com/millrace-go/millrace/internal/steady"
	"github.com/millrace-go/millrace/outbox"
)

// Config configures a [Handler]. With the zero value the handler shows the inbox and changes
// nothing.
type Config struct {
	// Title names the system, such as "shop, production". The head, the title of the tab and every
	// form that changes something show it. Defaults to none.
	Title string

	// Color marks the environment in the head: red, orange, green, blue, purple or grey. Defaults to
	// none.
	Color string

	// Database says which database this is, as user@host/database, and is shown beside Title. It may
	// be the connection string, of which nothing else is shown or kept. Defaults to none.
	Database string

	// Outbox is the outbox to show; operators can retry and discard its parked messages, and it stores what
	// a handler returned and the broker may lack. Defaults to none.
	Outbox *outbox.Publisher

	// Redeliver publishes a retried message to its topic if no queue serves its consumer; see
	// Admin.Retry. Defaults to none: such a message cannot be retried from here.
	Redeliver message.Publisher

	// Operator returns the name of the person who sent a request, for the audit table. "" means
	// nobody is signed in, and nobody cannot change anything. The handler does not authenticate:
	// the code around it does. Defaults to nobody.
	Operator func(*http.Request) string

	// ReadOnly hides and refuses all actions.
	ReadOnly bool

	// Trace is the address of a trace, such as "https://tempo.internal/trace/{trace}": {trace} stands for
	// the ID, which the history of a message has if package tracing observes the inbox. Defaults to
	// none: the ID is shown without a link.
	Trace string

	// Prefix is the path of the handler, such as "/admin/messages". Defaults to the path of the
	// http.ServeMux pattern that serves it, or else to none, which is right behind
	// http.StripPrefix.
	Prefix string

	// Budget is how long one request works through many messages before it asks whether to
	// continue. Defaults to 3 seconds, below the timeouts of proxies.
	Budget time.Duration

	// Logger logs failed requests. Defaults to the logger of the store.
	Logger watermill.LoggerAdapter
}

// colors are those of the style sheet that Config.Color may name.
var colors = []string{"red", "orange", "green", "blue", "purple", "grey"}

// system is what every page shows of the configuration.
type system struct{ Title, Color, Place string }

func (c *Config) system() system { return system{c.Title, c.Color, c.Database} }

// traceMark stands for the ID in Config.Trace.
const traceMark = "{trace}"

// traceLink returns the address of a trace, "" if there is none.
func (c *Config) traceLink(id string) string {
	if c.Trace == "" || id == "" {
		return ""
	}
	return strings.ReplaceAll(c.Trace, traceMark, url.QueryEscape(id))
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
	c.Database = secret.Place(c.Database)
}

// Validate returns every problem of c at once.
func (c Config) Validate() error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if c.Prefix != "" && !strings.HasPrefix(c.Prefix, "/") {
		problem("Prefix %q does not begin with a slash", c.Prefix)
	}
	if c.Color != "" && !slices.Contains(colors, c.Color) {
		problem("Color %q is none of %s", c.Color, strings.Join(colors, ", "))
	}
	if at, err := url.Parse(strings.ReplaceAll(c.Trace, traceMark, "1")); c.Trace != "" &&
		(err != nil || at.Scheme != "https" && at.Scheme != "http" || !strings.Contains(c.Trace, traceMark)) {
		problem("Trace %q is not an address that contains %s", c.Trace, traceMark)
	}
	if c.Budget < 0 {
		problem("Budget %v is negative", c.Budget)
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("dashboard: invalid Config: %w", err)
	}
	return nil
}
