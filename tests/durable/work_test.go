package durable_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/process"
)

// Metadata fields by which a message says what its handler does.
const (
	endsProcess = "ends the process"
	failsFirst  = "fails first"
	takes       = "takes"    // so long
	outlasts    = "outlasts" // so many others
)

// createWorks makes the table of what handlers did, in the order in which they did it.
func (b *bed) createWorks() {
	b.Helper()
	id := map[string]string{
		"postgres": "BIGSERIAL PRIMARY KEY", "mysql": "BIGINT AUTO_INCREMENT PRIMARY KEY", "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
	}[b.db.Dialect]
	b.db.Do(b, `CREATE TABLE works (id `+id+`, uuid VARCHAR(60) NOT NULL, process VARCHAR(60) NOT NULL, lane VARCHAR(60) NOT NULL)`)
}

// works counts what was done for a message.
func (b *bed) works(uuid string) int {
	b.Helper()
	return b.count(`SELECT COUNT(*) FROM works WHERE uuid = ?`, uuid)
}

var errFirst = errors.New("the first run fails")

// handle does what the message says.
func (p *servedProcess) handle(msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context()
	var to sqlx.ExtContext = p.pool.DB
	if !p.Bare {
		tx, err := inbox.Tx(ctx)
		if err != nil {
			return nil, err
		}
		to = tx
	}
	if err := p.tellRun(ctx, to, msg); err != nil {
		return nil, err
	}
	if msg.Metadata.Get(endsProcess) != "" {
		os.Exit(3)
	}
	if p.Bare {
		p.reach(ctx, process.BeforeClaim) // as long as nothing was done
	}
	_, err := to.ExecContext(ctx, to.Rebind(`INSERT INTO works (uuid, process, lane) VALUES (?, ?, ?)`),
		msg.UUID, p.Name, msg.Metadata.Get("key"))
	if err != nil {
		return nil, err
	}
	p.reach(ctx, process.InHandler)
	if d := msg.Metadata.Get(takes); d != "" {
		if err := work(ctx, d); err != nil {
			return nil, err
		}
	}
	if n := msg.Metadata.Get(outlasts); n != "" {
		if err := p.outlast(ctx, n); err != nil {
			return nil, err
		}
	}
	if msg.Metadata.Get(failsFirst) != "" && p.first(msg.UUID) {
		return nil, errFirst
	}
	produced := make([]*message.Message, p.Produce)
	for i := range produced {
		produced[i] = message.NewMessage(watermill.NewUUID(), []byte(msg.UUID))
		produced[i].Metadata = message.Metadata{"for": msg.UUID, "number": strconv.Itoa(i)}
	}
	return produced, nil
}

// tellRun says that the handler was called, and how often the message was tried before.
func (p *servedProcess) tellRun(ctx context.Context, from sqlx.QueryerContext, msg *message.Message) error {
	n := p.runs.add()
	if p.Weigh > 0 {
		if n%p.Weigh == 0 {
			p.weigh()
		}
		return nil
	}
	var attempts int
	err := sqlx.GetContext(ctx, from, &attempts,
		p.pool.Rebind(`SELECT COALESCE(MAX(attempts), 0) FROM millrace_messages WHERE uuid = ?`), []byte(msg.UUID))
	if err != nil {
		return err
	}
	p.Say(process.Event{Kind: ran, UUID: msg.UUID, Counts: map[string]int{"attempts": attempts}})
	return nil
}

func (p *servedProcess) weigh() {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	p.Say(process.Event{Kind: weighed, Counts: map[string]int{"heap": int(m.HeapAlloc)}})
}

// work takes a while, or until ctx ends.
func work(ctx context.Context, takes string) error {
	d, err := time.ParseDuration(takes)
	if err != nil {
		return err
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// outlast waits until so many messages were handled.
func (p *servedProcess) outlast(ctx context.Context, messages string) error {
	want, err := strconv.Atoi(messages)
	if err != nil {
		return err
	}
	for {
		var works int
		err := p.pool.GetContext(ctx, &works, `SELECT COUNT(*) FROM works`)
		if err != nil || works >= want {
			return err
		}
		if err := work(ctx, "20ms"); err != nil {
			return err
		}
	}
}

// first reports whether no process has asked for the message before.
func (p *servedProcess) first(uuid string) bool {
	mark, err := os.OpenFile(filepath.Join(p.Marks, uuid), os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return false
	}
	return mark.Close() == nil
}

type runs struct{ n atomic.Int64 }

func (r *runs) add() int { return int(r.n.Add(1)) }
func (r *runs) all() int { return int(r.n.Load()) }

// told gives the test what the router publishes: then the broker has it.
type told struct{ *servedProcess }

var errDeaf = errors.New("nothing can be published")

func (p told) Publish(_ string, msgs ...*message.Message) error {
	source := msgs[0].Metadata["for"]
	p.reachFor(source, process.BeforePublish)
	if p.Deaf {
		return errDeaf
	}
	for i, m := range msgs {
		if i > 0 {
			p.reachFor(source, process.MidPublish)
		}
		p.Say(process.Event{Kind: process.Published, UUID: source,
			Published: &process.Message{UUID: m.UUID, Metadata: m.Metadata, Payload: m.Payload}})
	}
	p.reachFor(source, process.AfterPublish)
	return nil
}

func (told) Close() error { return nil }
