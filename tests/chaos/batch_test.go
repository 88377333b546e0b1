package chaos_test

import (
	"context"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
)

// sum adds the amounts of many transfers up, and fails now and then, as a whole or with one that it names.
func (s *service) sum(ctx context.Context, msgs []*message.Message) error {
	s.batches.Add(1)
	s.batched.Add(int64(len(msgs)))
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return err
	}
	sums := map[int]int{}
	for _, msg := range msgs {
		var t transfer
		if err := json.Unmarshal(msg.Payload, &t); err != nil {
			return millrace.Failed(msg, inbox.Terminal(err))
		}
		sums[t.Account] += t.Amount
		if err := s.enter(ctx, tx, "summed", t, msg.UUID); err != nil {
			return err
		}
	}
	for _, account := range slices.Sorted(maps.Keys(sums)) {
		_, err := tx.ExecContext(ctx, tx.Rebind(`UPDATE sums SET summed = summed + ? WHERE account = ?`), sums[account], account)
		if err != nil {
			return err
		}
	}
	switch rand.IntN(30) {
	case 0:
		return s.faulty(errBusiness)
	case 1:
		return millrace.Failed(msgs[rand.IntN(len(msgs))], s.faulty(errBusiness))
	}
	return nil
}
