package inboxtest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/inboxtest"
	millrace "github.com/millrace-go/millrace/middleware"
)

// A replay does twice what it may: a mail, a message, a sum. The rule of its consumer, or a rebuild, makes each
// right. Under a rule that is meant for something else it stays wrong.
func TestReplayModeShowsWhatAReplayDoesTwice(t *testing.T) {
	t.Parallel()
	mail := func(p *inboxtest.Process, msg *message.Message) ([]*message.Message, error) {
		return nil, p.External(msg.Context(), "mail", func() error { return addInTx(msg) })
	}
	cutOff := func(p *inboxtest.Process, msg *message.Message) ([]*message.Message, error) {
		if inbox.IsReplay(msg.Context()) {
			_ = p.External(msg.Context(), "mail", func() error { return fmt.Errorf("no answer: %w", context.DeadlineExceeded) })
			return nil, addInTx(msg)
		}
		return mail(p, msg)
	}
	publish := func(_ *inboxtest.Process, msg *message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage(watermill.NewUUID(), msg.Payload)}, addInTx(msg)
	}
	sum := func(_ *inboxtest.Process, msg *message.Message) ([]*message.Message, error) { return nil, addInTx(msg) }
	fails := func(_ *inboxtest.Process, msg *message.Message) ([]*message.Message, error) {
		if inbox.IsReplay(msg.Context()) {
			return nil, inbox.Terminal(assert.AnError)
		}
		return nil, addInTx(msg)
	}
	for name, c := range map[string]struct {
		handler func(*inboxtest.Process, *message.Message) ([]*message.Message, error)
		rule    inbox.ReplayRule
		rebuild func(context.Context, *sqlx.DB) error
		want    []string // in what is reported; nothing is, where it is right
	}{
		"a mail":                  {handler: mail, rebuild: emptyAccounts, want: []string{"with a replay of forgotten messages", "called again by the replay: m1 CALL mail, m2 CALL mail", "ReplayRefuse"}},
		"a mail, suppressed":      {handler: mail, rule: inbox.ReplaySuppress, rebuild: emptyAccounts, want: []string{"m1 CALL mail"}},
		"a mail, refused":         {handler: mail, rule: inbox.ReplayRefuse},
		"a mail that is cut off":  {handler: cutOff, rebuild: emptyAccounts},
		"a message":               {handler: publish, rebuild: emptyAccounts, want: []string{"published again by the replay, under another UUID: receipts \"10\"", "ReplaySuppress"}},
		"a message, suppressed":   {handler: publish, rule: inbox.ReplaySuppress, rebuild: emptyAccounts},
		"a message, refused":      {handler: publish, rule: inbox.ReplayRefuse},
		"a sum":                   {handler: sum, want: []string{"after the replay the ledger is\n    30\n  instead of\n    15", "Scenario.Rebuild"}},
		"a sum, built anew":       {handler: sum, rebuild: emptyAccounts},
		"a sum, refused":          {handler: sum, rule: inbox.ReplayRefuse},
		"a sum, emptied, refused": {handler: sum, rule: inbox.ReplayRefuse, rebuild: emptyAccounts, want: []string{"the ledger is\n    0\n"}},
		"a sum that fails on it":  {handler: fails, want: []string{"stuck"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scenario := accounts(func(p *inboxtest.Process, store *inbox.Store) error {
				p.Router.AddMiddleware(millrace.Inbox{Store: store, Timeout: timeout, Options: inbox.Options{OnReplay: c.rule}}.Middleware)
				p.Router.AddHandler("book", "payments", p.Subscriber, "receipts", p.Publisher,
					func(msg *message.Message) ([]*message.Message, error) { return c.handler(p, msg) })
				return nil
			})
			scenario.Rebuild = c.rebuild
			heard := &heard{TB: t}
			inboxtest.ReplayMode(heard, scenario)
			text := heard.String()
			if c.want == nil {
				assert.Empty(t, text)
			}
			for _, want := range c.want {
				assert.Contains(t, text, want)
			}
			assert.NotContains(t, text, "with a replay of remembered messages")
		})
	}
}
