package middleware_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
)

// On SQLite a handler of an Inbox keeps the turn to write for as long as it runs. What else is recorded waits for it, and is not
// taken for lost.
func TestARecordWaitsForAHandlerThatWrites(t *testing.T) {
	once := func(msg *message.Message, do func()) error {
		_, err := inbox.Once(msg.Context(), "mail", func(context.Context, string) ([]byte, error) { do(); return nil, nil })
		return err
	}
	for name, h := range map[string]func(msg *message.Message, writes func()) error{
		"the confirmation of a lease": func(_ *message.Message, writes func()) error { writes(); return nil },
		"the record of a step":        once,
		"the intent of a step":        func(msg *message.Message, writes func()) error { writes(); return once(msg, func() {}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, store := open(t)
				entered, ended := make(chan struct{}), make(chan error, 1)
				report := millrace.Inbox{Store: store, Consumer: "reports"}.Middleware(func(msg *message.Message) ([]*message.Message, error) {
					close(entered)
					time.Sleep(20 * time.Second) // below Timeout
					return effect(msg)
				})
				runs := 0
				mail := millrace.Deduplicate{Claims: store.Leases(), Consumer: "mailer"}.Middleware(func(msg *message.Message) ([]*message.Message, error) {
					runs++
					return nil, h(msg, func() {
						go func() { ended <- send(report, "report") }()
						<-entered
					})
				})
				require.NoError(t, send(mail, "a"))
				require.NoError(t, <-ended)
				require.NoError(t, send(mail, "a"))
				require.Equal(t, 1, runs)
			})
		})
	}
}
