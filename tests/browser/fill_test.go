package browser_test

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/stuck"
)

// fill has something of everything on the pages.
func (s *service) fill() {
	s.Helper()
	for _, name := range []string{consumer, "shipping", "mail"} {
		s.Serve(name)
	}
	s.Serve("projection", millrace.VersionGate{}.Middleware)
	var orders []*message.Message
	for i := range 60 {
		fails := ""
		switch {
		case i%4 == 1:
			fails = fmt.Sprintf("account %d has no owner", 4000+i)
		case i%9 == 2:
			fails = `the bank said "card expired"`
		}
		orders = append(orders, stuck.Order(i, fails))
	}
	s.Put(consumer, orders...)
	s.Put("shipping", stuck.Order(1, ""), stuck.Order(2, "no stock of A-7 in warehouse 3"), stuck.Order(8, "no stock of A-9 in warehouse 1"))
	sent := stuck.Order(1, "")
	sent.Metadata.Set("keeps", "sent as 4711")
	s.Put("mail", sent, stuck.Order(2, ""))
	for i, version := range []int64{1, 2, 5, 6, 9} {
		msg := stuck.Order(100+i, "")
		outbox.Stamp(msg, "order-7", version)
		s.Put("projection", msg)
	}
	s.Await(23, `SELECT COUNT(*) FROM millrace_messages WHERE status IN (5, 6)`)
	s.Await(3, `SELECT COUNT(*) FROM millrace_messages WHERE status = 7`)
	s.Await(23+3, `SELECT COUNT(*) FROM millrace_messages`)
	s.park()
	s.decide()
	s.past()
}

// park has relays give up on a message, and send the rest.
func (s *service) park() {
	s.Helper()
	require.NoError(s, s.Outbox.Publish("invoices", stuck.Order(1, ""), stuck.Order(2, "")))
	s.DB.Do(s.T, `
		UPDATE millrace_outbox SET status = 3, attempts = 10, last_error = 'no exchange "invoices" in vhost "/"'
		WHERE id IN (SELECT MAX(id) FROM millrace_outbox)`)
	relay, err := outbox.NewRelay(s.DB.DB, &rig.Publisher{}, outbox.RelayConfig{Name: "billing-7d4f"})
	require.NoError(s, err)
	_, err = relay.RelayBatch(s.Context())
	require.NoError(s, err)
}

// decide has operators do something, for the audit log.
func (s *service) decide() {
	s.Helper()
	ctx := s.Context()
	page, err := admin.New(s.Store).Search(ctx, admin.Filter{Consumer: consumer}, 0, 3, 0)
	require.NoError(s, err)
	_, err = admin.New(s.Store).Reveal(ctx, page.Messages[1].ID, admin.Operator{Name: "grace", Reason: "which customer is it?"})
	require.NoError(s, err)
	require.NoError(s, admin.New(s.Store).Discard(ctx, page.Messages[2].ID, admin.Operator{Name: "ada", Reason: "a test order, TICKET-118"}))
	require.NoError(s, admin.New(s.Store).Pause(ctx, "mail", 0, admin.Operator{Name: "ada", Reason: "the mail server is being moved"}))
}

// past gives the consumers an hour behind them.
func (s *service) past() {
	s.Helper()
	for c, rate := range map[string]float64{consumer: 240, "shipping": 130, "mail": 300, "projection": 60} {
		for m := 61; m >= 0; m-- {
			wave := 1 + 0.35*math.Sin(float64(m)/9) + 0.12*math.Sin(float64(m*m))
			failed := 0
			if c == consumer && m < 26 && m > 11 {
				failed = int(14 * (1 + math.Sin(float64(m))))
			}
			s.DB.Do(s.T, `
				INSERT INTO millrace_activity (minute, consumer, completed, failed, duplicates, stale, held, parked, handling_us)
				SELECT ?, id, ?, ?, 0, 0, 0, 0, ? FROM millrace_consumers WHERE name = ?
				ON CONFLICT (minute, consumer) DO UPDATE SET completed = excluded.completed, failed = excluded.failed, handling_us = excluded.handling_us`, time.Now().Add(-time.Duration(m)*time.Minute).Truncate(time.Minute).UnixMicro(), int(rate*wave), failed, int(rate*wave*(4000+900*math.Sin(float64(m)/5))), []byte(c))
		}
	}
}

// groupPage is the address of the largest group of failures.
func (s *service) groupPage() string {
	s.Helper()
	groups, err := admin.New(s.Store).FailureGroups(s.Context(), admin.Filter{})
	require.NoError(s, err)
	return "failure?group=" + strconv.FormatInt(groups[0].ErrorGroup, 10)
}
