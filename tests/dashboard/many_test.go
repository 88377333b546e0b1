package dashboard_test

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/dashboard"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/stuck"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestPagesBesideManyMessages(t *testing.T) {
	testdb.Conformance(t, manyBodies)
}

var manyBodies = []testdb.Body{
	{Name: "a topic that few messages have", Why: "a page says how far it looked and goes on from there", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		b.crowd(11_500)
		next := regexp.MustCompile(`<a href="([^"]+)" rel="next"`)
		page, seen, looks := "inbox?topic=rare", 0, 0
		for ; page != "" && looks < 10; looks++ {
			a := b.get(page)
			b.shows(a)
			seen += strings.Count(a.text, `href="message?key=rare-`)
			link := next.FindStringSubmatch(a.text)
			if page = ""; link != nil {
				b.shows(a, "None was found among 10,000 messages", "Continue the search")
				page = strings.ReplaceAll(link[1], "&amp;", "&")
			}
		}
		assert.Equal(t, 2, looks)
		assert.Equal(t, 1, seen)
		b.shows(b.get("inbox?topic=rare&sort=-stored"), "rare-") // it is the newest
		b.shows(b.get("inbox?topic=rare&status=parked"), "No open message matches")
	}},
	{Name: "a key with which everything comes", Why: "what collides with it are rows that have it, and a page is no table", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		b.crowd(500)
		db.Do(t, `UPDATE millrace_messages SET original = ? WHERE topic <> ?`, []byte("\x02same"), []byte("rare"))
		a := b.get("message?key=same")
		b.shows(a, "At least 100 messages came with this key and another payload")
		assert.Equal(t, 100, strings.Count(a.text, `class="card"`))
	}},
	{Name: "counts that grow", Why: "the first page must not wait for a count, and the figures come later", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		b.crowd(1_200)
		h, err := dashboard.New(b.Store, dashboard.Config{Prefix: stuck.Prefix})
		require.NoError(t, err)
		b.pages = h
		b.shows(b.get(""), ">100&#43;<")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- h.Run(ctx) }()
		require.Eventually(t, func() bool {
			return strings.Contains(b.get("").text, ">1,201<") && strings.Contains(b.get("consumers").text, "1,201")
		}, rig.Patience, 50*time.Millisecond)
		cancel()
		require.NoError(t, <-ended)
	}},
}

// crowd stores so many messages for a consumer, and behind them one of another topic.
func (b *bed) crowd(n int) {
	b.Helper()
	b.Put(consumer, stuck.Order(0, ""))
	text := map[string]string{
		"postgres": `'\x02'::BYTEA || convert_to('rare-' || i, 'UTF8')`, "mysql": `CONCAT(x'02', 'rare-', i)`, "sqlite": `CAST(char(2) || 'rare-' || i AS BLOB)`,
	}[b.DB.Dialect]
	b.DB.Do(b.T, `
		INSERT INTO millrace_messages (consumer, message_id, status, attempts, topic, uuid, metadata, payload, payload_hash, received_at, due_at)
		WITH RECURSIVE n (j) AS (SELECT 0 UNION ALL SELECT j + 1 FROM n WHERE j < 149)
		SELECT m.consumer, `+text+`, 1, 0, CASE WHEN i < ? THEN m.topic ELSE ? END, `+text+`, m.metadata, m.payload, 1, m.received_at, m.due_at
		FROM (SELECT a.j * 150 + b.j + 1 AS i FROM n a CROSS JOIN n b) numbers
		CROSS JOIN millrace_messages m
		WHERE i <= ?
		ORDER BY i`, n, []byte("rare"), n)
	require.Equal(b, n+1, b.Count(`SELECT COUNT(*) FROM millrace_messages`))
	all, err := admin.New(b.Store).Search(b.Context(), admin.Filter{Topic: "rare"}, 0, 10, n+1)
	require.NoError(b, err)
	require.Len(b, all.Messages, 1)
}
