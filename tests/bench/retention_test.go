package bench_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/testdb"
)

const (
	day           = 24 * time.Hour
	simulatedDays = 30
	daysKept      = 7
	purgesADay    = 4 // the janitor does 14
)

// BenchmarkRetention simulates 30 days of a consumer that remembers its messages for seven: each day brings as many
// claims, the purge deletes the oldest, and the table is vacuumed when autovacuum would, with its default settings. A
// day has 100,000 messages instead of 86 million, and takes a second. The size is compared with that of a copy of the
// table, the rate with that of a table that has one day's claims.
func BenchmarkRetention(b *testing.B) {
	for _, key := range []struct{ name, bytes string }{
		{"random ids", `uuid_send(gen_random_uuid())`},
		{"ids that sort by time", `decode(lpad(to_hex((at + i) / 1000), 12, '0'), 'hex') || substr(uuid_send(gen_random_uuid()), 7)`},
	} {
		b.Run(key.name, func(b *testing.B) {
			old, young := newCalendar(b, key.bytes), newCalendar(b, key.bytes)
			young.brings(day)
			for range pick(simulatedDays, daysKept+2) {
				old.passes()
			}
			live := old.sizeOfCopy()
			rates := series{}
			for range pick(7, 1) {
				rates.add("aged", old.inbox.flood(b, phase()))
				rates.add("fresh", young.inbox.flood(b, phase()))
			}
			atLeast("retention rate/"+key.name, 0.9).judge(b, rates.over("aged", "fresh"), "after %d days %.0f/s, after the first %.0f/s",
				simulatedDays, median(rates["aged"]), median(rates["fresh"]))
			atMost("retention size/"+key.name, 1.3).judge(b, []float64{float64(old.most) / float64(live)},
				"at most %.1f MB, a copy %.1f MB", float64(old.most)/1e6, float64(live)/1e6)
		})
	}
}

// calendar is a database whose consumer has lived through some days, of which the last is today.
type calendar struct {
	*testing.B
	db    *testdb.DB
	store *inbox.Store
	inbox *service
	key   string
	daily int // messages

	now             time.Duration // since the first day began
	live, dead, new int           // claims; the latter two since the last VACUUM
	most            int64         // bytes, once the first claims are deleted
}

func newCalendar(b *testing.B, key string) *calendar {
	b.Helper()
	db := database(b)
	c := &calendar{B: b, db: db, store: newStore(b, db), inbox: inboxOn(b, db.DB, transfer), key: key, daily: pick(100_000, 1_000)}
	c.inbox.handle(b, 1) // registers the consumer
	return c
}

// brings stores the claims of a while, at its end.
func (c *calendar) brings(while time.Duration) {
	n := int(while * time.Duration(c.daily) / day)
	c.db.Do(c, fmt.Sprintf(`
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		SELECT (SELECT max(id) FROM millrace_consumers), '\x01'::BYTEA || %s, i, i, 1, at + i
		FROM generate_series(1, %d) i, (SELECT %d::BIGINT AS at) era`, c.key, n, c.at(c.now)))
	c.now += while
	c.live, c.new = c.live+n, c.new+n
}

// at is when the calendar is so old, as the inbox tells the time. Its last day ends now.
func (*calendar) at(age time.Duration) int64 {
	return time.Now().Add(age - (simulatedDays+1)*day).UnixMicro()
}

// passes lives through a day.
func (c *calendar) passes() {
	began := time.Now()
	for range purgesADay {
		c.brings(day / purgesADay)
		c.db.Do(c, `UPDATE millrace_consumers SET retention = $1`, time.Now().UnixMicro()-c.at(c.now-daysKept*day))
		_, err := c.store.Purge(c.Context()) // the service's own janitor may delete some of them
		require.NoError(c, err)
		live := c.db.Count(c, `SELECT COUNT(*) FROM millrace_claims`) - 1
		c.live, c.dead = live, c.dead+c.live-live
		if c.dead > 50+c.live/5 || c.new > 1000+c.live/5 { // autovacuum's rules
			c.db.Do(c, `VACUUM ANALYZE millrace_claims`)
			c.dead, c.new = 0, 0
		}
	}
	bytes := c.size("millrace_claims")
	if day := c.now / day; day > daysKept {
		c.most = max(c.most, bytes)
	}
	tell(fmt.Sprintf("%s day %d: %d claims, %.1f MB, %d bytes each; the day took %v", c.Name(), c.now/day, c.live,
		float64(bytes)/1e6, bytes/int64(c.live), time.Since(began).Round(time.Millisecond)))
}

func (c *calendar) size(table string) (bytes int64) {
	require.NoError(c, c.db.Get(&bytes, `SELECT pg_total_relation_size($1::REGCLASS)`, table))
	return bytes
}

// sizeOfCopy is the size of the claims in a table that was never anything else.
func (c *calendar) sizeOfCopy() int64 {
	run(c.B, c.db, `CREATE TABLE bench_copy (LIKE millrace_claims INCLUDING ALL)`, `INSERT INTO bench_copy SELECT * FROM millrace_claims`)
	return c.size("bench_copy")
}
