package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub/watermillsql"
)

// chaos publishes payments, half of them twice and none in order, and kills the bank.
type chaos struct {
	*databases
	dsn, name string
	published int         // copies included
	balances  map[int]int // of each account, when all is posted

	mu    sync.Mutex
	count map[string]int // of what the bank says
}

func (c *chaos) publish() error {
	var all []*message.Message
	for range payments {
		p := payment{Account: rand.IntN(accounts), Amount: rand.IntN(1_000_000)}
		c.balances[p.Account] += p.Amount
		payload, err := json.Marshal(p)
		if err != nil {
			return err
		}
		msg := message.NewMessage(watermill.NewUUID(), payload)
		for range 1 + rand.IntN(2) {
			all = append(all, msg)
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	c.published = len(all)
	publisher, err := watermillsql.NewPublisher(c.topics, watermillsql.Config{})
	if err != nil {
		return err
	}
	return publisher.Publish("payments", all...)
}

// run starts the bank again after each crash, until all is done.
func (c *chaos) run(ctx context.Context) error {
	for left := crashes; left > 0; left-- {
		share := (handlings - c.counted("completed")) / (left + 1)
		if err := c.crash(ctx, c.counted("completed")+share/2+rand.IntN(share+1)); err != nil {
			return err
		}
	}
	bank, err := c.start()
	if err != nil {
		return err
	}
	defer bank.kill()
	if err := c.untilQuiet(ctx, bank); err != nil {
		return err
	}
	c.progress()
	return bank.stop()
}

// crash starts the bank and kills it when it has handled so many messages.
func (c *chaos) crash(ctx context.Context, handled int) error {
	bank, err := c.start()
	if err != nil {
		return err
	}
	defer bank.kill()
	err = bank.until(ctx, func() (bool, error) { return c.counted("completed") >= handled, nil })
	if err == nil {
		c.tell("killed")
		c.progress()
	}
	return err
}

func (c *chaos) start() (*process, error) { return start(c.tell, "-db", c.dsn, "-serve", c.name) }

// untilQuiet waits until all payments are acked, then until all receipts have left the
// outbox, then until those are acked. If that takes too long, the books will tell why.
func (c *chaos) untilQuiet(ctx context.Context, bank *process) error {
	const patience = time.Minute
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errNotQuiet)
	defer cancel()
	out, err := outbox.NewPublisher(c.accounts, outbox.Config{})
	if err != nil {
		return err
	}
	for _, quiet := range []func() (bool, error){
		func() (bool, error) { return c.acked(ctx, "payments") },
		func() (bool, error) {
			backlog, err := out.Backlog(ctx, outbox.BacklogOptions{})
			return backlog.Unsent().N == 0, err
		},
		func() (bool, error) { return c.acked(ctx, "receipts") },
	} {
		err := bank.until(ctx, quiet)
		if errors.Is(context.Cause(ctx), errNotQuiet) {
			fmt.Println(errNotQuiet)
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var errNotQuiet = errors.New("still not all is done")

// acked reports, from watermill-sql's tables, whether the bank has acked all of a topic.
func (c *chaos) acked(ctx context.Context, topic string) (all bool, err error) {
	err = c.topics.GetContext(ctx, &all, fmt.Sprintf(`
		SELECT NOT EXISTS (
			SELECT 1 FROM "watermill_%[1]s" WHERE (transaction_id, "offset") > ALL (
				SELECT last_processed_transaction_id, offset_acked FROM "watermill_offsets_%[1]s"))`, topic))
	return all, err
}

func (c *chaos) tell(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count[what]++
}

func (c *chaos) counted(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count[what]
}

func (c *chaos) progress() {
	fmt.Printf("handled %3d of %d, failures %d, killed %d times\n",
		c.counted("completed"), handlings, c.counted("failed"), c.counted("killed"))
}
