package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"golang.org/x/sync/errgroup"

	"order-pipeline/orders"
)

// Items is how many items there are: 1, 2, 3 and so on.
const items = 20

// Load posts orders. Each has an idempotency key, with which it is posted again until the
// answer is a good one; one in three is posted twice at once, by a customer who clicked
// twice.
type Load struct {
	URL    string
	Orders int
	Rate   int // per second

	placed, doubled, retries, contradictions atomic.Int64
}

// Run returns when all orders are placed.
func (l *Load) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	pace := time.NewTicker(time.Second / time.Duration(l.Rate))
	defer pace.Stop()
	for range l.Orders {
		select {
		case <-ctx.Done():
			return group.Wait()
		case <-pace.C:
			group.Go(func() error { return l.place(ctx) })
		}
	}
	return group.Wait()
}

func (l *Load) String() string {
	return fmt.Sprintf("placed %d of %d orders, %d of them twice, requests sent again %d",
		l.placed.Load(), l.Orders, l.doubled.Load(), l.retries.Load())
}

// place places one order. Two answers to one key must name the same order.
func (l *Load) place(ctx context.Context) error {
	body, err := json.Marshal(orders.Request{Item: 1 + rand.IntN(items), Quantity: 1 + rand.IntN(3)})
	if err != nil {
		return err
	}
	key := watermill.NewUUID()
	var answers [2]orders.Response
	clicks := answers[:1]
	if rand.IntN(3) == 0 {
		clicks = answers[:2]
		l.doubled.Add(1)
	}
	group, ctx := errgroup.WithContext(ctx)
	for i := range clicks {
		group.Go(func() (err error) {
			clicks[i], err = l.insist(ctx, key, body)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if clicks[0] != clicks[len(clicks)-1] {
		l.contradictions.Add(1)
	}
	l.placed.Add(1)
	return nil
}

// insist sends a request until it is answered: the service may be dead at the moment.
func (l *Load) insist(ctx context.Context, key string, body []byte) (answer orders.Response, err error) {
	const patience = 30 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if answer, err = l.post(ctx, key, body); err == nil {
			return answer, nil
		}
		l.retries.Add(1)
		select {
		case <-ctx.Done():
			return answer, fmt.Errorf("order %s: %w", key, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (l *Load) post(ctx context.Context, key string, body []byte) (answer orders.Response, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, l.URL+"/orders", bytes.NewReader(body))
	if err != nil {
		return answer, err
	}
	request.Header.Set("Idempotency-Key", key)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return answer, err
	}
	defer func() { _ = response.Body.Close() }() // it was read
	if response.StatusCode != http.StatusCreated {
		said, _ := io.ReadAll(response.Body)
		return answer, fmt.Errorf("%s: %s", response.Status, said)
	}
	return answer, json.NewDecoder(response.Body).Decode(&answer)
}
