package bench_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/testdb"
)

// BenchmarkRows is P9: claims beside many rows against claims in an empty table, random
// keys. The handler says nothing, so the claim is all there is. Each phase follows a
// checkpoint, which is the worst time: the first change of a page logs all of it, and
// random keys change a page each.
func BenchmarkRows(b *testing.B) {
	small, large := database(b), database(b)
	empty, full := claiming(b, small), claiming(b, large)
	rows := largeTable(b)
	fill(b, large, rows)
	rates := series{}
	for range pick(5, 1) {
		run(b, small, `TRUNCATE millrace_claims`)
		for _, way := range []struct {
			name string
			db   *testdb.DB
			to   *service
		}{{"empty", small, empty}, {"full", large, full}} {
			way.to.handle(b, 200) // the statements are prepared anew after a TRUNCATE
			settleDown(b, way.db)
			rates.add(way.name, way.to.flood(b, phase()))
		}
	}
	atLeast("P9", 0.85).judge(b, rates.over("full", "empty"), "%.0f/s at %d rows, %.0f/s in an empty table",
		median(rates["full"]), rows, median(rates["empty"]))
}

func largeTable(b *testing.B) int {
	b.Helper()
	rows := pick(10_000_000, 20_000)
	if set := os.Getenv("MILLRACE_BENCH_ROWS"); set != "" {
		var err error
		rows, err = strconv.Atoi(set)
		require.NoError(b, err, "MILLRACE_BENCH_ROWS")
	}
	return rows
}

// claiming is a service whose handler takes its transaction and does nothing with it.
func claiming(b *testing.B, db *testdb.DB) *service {
	b.Helper()
	store := newStore(b, db)
	s := serve(b, func(msg *message.Message) error {
		_, err := inbox.Tx(msg.Context())
		return err
	}, func(router *message.Router) {
		router.AddMiddleware(millrace.Inbox{Store: store}.Middleware)
	})
	s.handle(b, 200)
	return s
}

// fill gives the consumer many claims. The index is made afterwards, with the room in its
// pages that an index has which grew by random keys.
func fill(b *testing.B, db *testdb.DB, rows int) {
	b.Helper()
	run(b, db,
		`ALTER TABLE millrace_claims DROP CONSTRAINT millrace_claims_pkey`,
		fmt.Sprintf(`
			INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
			SELECT c.id, '\x01'::BYTEA || uuid_send(gen_random_uuid()), i, i, 1, 1700000000000000 + i
			FROM millrace_consumers c, generate_series(1, %d) i`, rows),
		`ALTER TABLE millrace_claims ADD PRIMARY KEY (consumer, message_id) WITH (fillfactor = 70)`,
		`VACUUM ANALYZE millrace_claims`)
}
