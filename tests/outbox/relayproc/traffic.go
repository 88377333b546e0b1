package relayproc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/outbox"
)

// Traffic is business transactions that store messages, of which every third is rolled
// back. Each also writes its messages to the table effects, so that what was committed is
// known whatever became of whom.
type Traffic struct {
	db     *sqlx.DB
	out    *outbox.Publisher
	name   string
	Topic  string        // of all messages
	Pause  time.Duration // of a worker, between two transactions
	Stored atomic.Int64  // transactions that were committed
	Failed atomic.Int64  // transactions of which that is not known
}

// CreateEffects creates the table of what was committed.
const CreateEffects = `CREATE TABLE effects
	(id VARCHAR(40) PRIMARY KEY, order_key VARCHAR(40) NOT NULL, seq BIGINT NOT NULL)`

// NewTraffic returns traffic on db. Its keys start with name.
func NewTraffic(db *sqlx.DB, name string) (*Traffic, error) {
	out, err := outbox.NewPublisher(db, outbox.Config{OrderKey: outbox.ByMetadata("key")})
	return &Traffic{db: db, out: out, name: name, Topic: "orders", Pause: 20 * time.Millisecond}, err
}

// Run has so many workers store messages until ctx ends. A worker has two keys of its own,
// of which its transactions store in turn: so the order of each is known.
func (t *Traffic) Run(ctx context.Context, workers int) {
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() { t.work(ctx, fmt.Sprintf("%s-%d", t.name, w)) })
	}
	all.Wait()
}

func (t *Traffic) work(ctx context.Context, name string) {
	tick := time.NewTicker(t.Pause)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// Not ctx: a commit that is given up is carried out all the same, after somebody counted.
		err := t.Store(context.WithoutCancel(ctx), fmt.Sprintf("%s-%d", name, n%2), n, n%3 == 2)
		switch {
		case err == nil:
			t.Stored.Add(1)
		case !errors.Is(err, errBusiness):
			t.Failed.Add(1)
		}
	}
}

var errBusiness = errors.New("the business says no")

// Store stores two messages of a key in the order of their number n, and one without a key,
// and commits them or not. What is stored later of the key must have a greater number.
func (t *Traffic) Store(ctx context.Context, key string, n int, fail bool) error {
	return outbox.InTx(ctx, t.db, func(ctx context.Context, tx *sqlx.Tx) error {
		for i, k := range []string{key, key, ""} {
			msg := message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, "%d", 3*n+i))
			msg.Metadata.Set("key", k)
			_, err := tx.ExecContext(ctx, tx.Rebind(`INSERT INTO effects (id, order_key, seq) VALUES (?, ?, ?)`),
				msg.UUID, k, 3*n+i)
			if err != nil {
				return err
			}
			msg.SetContext(ctx)
			if err := t.out.Publish(t.Topic, msg); err != nil {
				return err
			}
		}
		if fail {
			return errBusiness
		}
		return nil
	})
}
