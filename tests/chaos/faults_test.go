package chaos_test

import (
	"cmp"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/millrace-go/millrace/tests/servers"
)

// faults is what the monkey may do.
func (r *ring) faults() []fault {
	const second = time.Second
	all := []fault{
		{"RabbitMQ killed", "RabbitMQ", 0, 3 * second, func() func() {
			r.rabbit.Kill()
			return r.rabbit.Start
		}},
		{"offsets reset", "offsets", 0, 0, func() func() {
			r.resetOffsets()
			return func() {}
		}},
	}
	for _, s := range r.seats {
		all = append(all, s.faults(r)...)
	}
	database := []fault{
		{"database killed", "database", 0, 2 * second, func() func() {
			r.primary().Kill()
			return r.primary().Start
		}},
		{"database frozen", "database", second, 6 * second, func() func() {
			r.primary().Freeze()
			return r.primary().Thaw
		}},
	}
	if r.pair != nil {
		database = append(database, fault{"failed over to the standby", "database", 0, second, func() func() {
			r.pair.FailOver()
			for _, w := range r.wires {
				w.Aim(r.primary().Addr())
			}
			return r.pair.Rebuild
		}})
	}
	return append(all, database...)
}

// faults is what the monkey may do to a member and its connections.
func (s *seat) faults(r *ring) []fault {
	const second = time.Second
	faults := []fault{
		{"member killed", s.Name, 0, second, func() func() {
			s.process.Kill()
			return func() { r.seat(s) }
		}},
		{"member frozen", s.Name, second, 2 * timeout, func() func() {
			s.process.Signal(syscall.SIGSTOP)
			return func() { s.process.Signal(syscall.SIGCONT) }
		}},
		{"member stopped in order", s.Name, 0, second, func() func() {
			s.stop(r)
			return func() { r.seat(s) }
		}},
	}
	for to, w := range map[string]*servers.Wire{"database": s.database, "RabbitMQ": s.broker} {
		target := fmt.Sprint(s.Name, "'s connections to ", to)
		mend := func() { w.Mend() }
		faults = append(faults,
			fault{"connections to " + to + " cut", target, 0, 3 * second, func() func() { w.Cut(); return mend }},
			fault{"connections to " + to + " frozen", target, second, 2 * timeout, func() func() { w.Freeze(); return mend }},
			fault{"connections to " + to + " slow", target, second, 5 * second, func() func() { w.Slow(20 * time.Millisecond); return mend }},
		)
	}
	slices.SortStableFunc(faults, func(a, b fault) int { return cmp.Compare(a.name, b.name) }) // the map had no order
	return faults
}

// stop asks a member to end.
func (s *seat) stop(r *ring) {
	s.process.Signal(syscall.SIGTERM)
	select {
	case <-s.process.Ended():
	case <-time.After(time.Minute):
		s.process.Kill()
		r.Errorf("%s did not end in order within a minute\n%s", s.Name, s.process.Said())
	}
}

// resetOffsets has the last receipts delivered again.
func (r *ring) resetOffsets() {
	const back = 200
	statement := fmt.Sprintf(`UPDATE watermill_offsets_receipts SET offset_acked = GREATEST(0, offset_acked - %d)`, back)
	if r.pair != nil {
		statement = fmt.Sprintf(`
			UPDATE watermill_offsets_receipts SET offset_acked = m."offset", last_processed_transaction_id = m.transaction_id
			FROM (SELECT r."offset", r.transaction_id FROM watermill_receipts r, watermill_offsets_receipts o
				WHERE (r.transaction_id, r."offset") <= (o.last_processed_transaction_id, o.offset_acked)
				ORDER BY r.transaction_id DESC, r."offset" DESC OFFSET %d LIMIT 1) m`, back)
	}
	_, _ = r.ledger.db.ExecContext(r.Context(), statement) // the database may be away
}
