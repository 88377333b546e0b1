package tests_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/keycode"
)

// viewsMatch compares the views with what the command shows.
func (s *shop) viewsMatch() {
	s.Helper()
	long := strings.Repeat("long ", 60)
	for row, key := range map[int]string{3: "a\x00b", 4: "\xff\xfe", 5: long, 6: "Größe 'x' ☃"} {
		s.exec(`UPDATE millrace_messages SET message_id = ? WHERE id = ?`, keycode.Encode(key), row)
	}
	s.exec(`UPDATE millrace_messages SET lease_token = 1, due_at = ? WHERE id = 5`, time.Now().Add(time.Hour).UnixMicro())

	var listed struct {
		Messages []struct {
			ID, Attempts, Epoch                                                          int
			Consumer, Status, Key, UUID, Topic, Reason, Error, Group, Aggregate, Version string
			Original                                                                     string `json:"collided_with"`
			Received                                                                     string `json:"received_at"`
			Due                                                                          string `json:"due_at"`
			Leased                                                                       string `json:"leased_until"`
		}
	}
	s.said(&listed, "list", "--limit", "1000")
	messages := s.view("messages")
	require.Len(s, messages, len(listed.Messages))
	for i, m := range listed.Messages {
		v := messages[i]
		if m.Status == "HELD" {
			v["due_at"] = "" // which the command calls the time to park it
		}
		s.equal(v, "id", m.ID, "consumer", m.Consumer, "epoch", m.Epoch, "state", m.Status, "message_key", s.key(keycode.Read(m.Key)),
			"uuid", m.UUID, "topic", m.Topic, "attempts", m.Attempts, "reason", m.Reason, "last_error", m.Error, "failure_group", m.Group,
			"aggregate", m.Aggregate, "version", m.Version, "original_key", m.Original, "received_at", m.Received, "due_at", m.Due, "leased_until", m.Leased)
	}

	type entry struct {
		ID                                                    int
		At, By, Reason, Action, Consumer, Key, Detail, Number string
		Epoch, Messages                                       int
	}
	var audit struct{ Entries []entry }
	s.said(&audit, "audit", "--limit", "1000")
	entries := s.view("audit")
	require.Len(s, entries, len(audit.Entries))
	for i, e := range audit.Entries {
		v := entries[len(entries)-1-i]
		if e.Consumer != "" {
			s.equal(v, "epoch", e.Epoch)
		}
		if e.Messages > 0 {
			s.equal(v, "messages", e.Messages)
		}
		s.equal(v, "id", e.ID, "at", e.At, "operator", e.By, "reason", e.Reason, "action", e.Action, "consumer", e.Consumer,
			"message_key", keycode.Read(e.Key), "detail", e.Detail)
	}
	var changed struct {
		Entry    entry
		Messages []struct {
			Number          int
			At, Key, Detail string
		}
	}
	seen := map[string]int{}
	for _, v := range s.view("audit_messages") {
		if v["number"] == "1" {
			changed.Entry = entry{}
			s.said(&changed, "audit", v["entry"])
		}
		m := changed.Messages[seen[changed.Entry.Action]]
		seen[changed.Entry.Action]++
		s.equal(v, "entry", changed.Entry.ID, "number", m.Number, "at", m.At, "message_key", m.Key, "detail", m.Detail,
			"operator", changed.Entry.By, "reason", changed.Entry.Reason, "action", changed.Entry.Action, "consumer", changed.Entry.Consumer)
	}
	assert.Equal(s, map[string]int{"retry": 1, "outbox discard": 1, "redispatch": 1}, seen)

	history := s.view("history")
	require.Len(s, history, s.count(`SELECT COUNT(*) FROM millrace_history`))
	for _, v := range history {
		story, err := admin.New(s.store).Story(s.Context(), v["message_key"])
		require.NoError(s, err)
		at := slices.IndexFunc(story.History, func(h admin.HistoryEntry) bool { return fmt.Sprint(h.Number) == v["number"] })
		require.GreaterOrEqual(s, at, 0, v)
		h := story.History[at]
		s.equal(v, "consumer", h.Consumer, "at", h.At.Format(stamps), "what", h.What(), "state", h.Status, "attempts", h.Attempts,
			"reason", h.Reason, "error", h.Error, "process", h.Process, "trace_id", h.TraceID)
		if seconds, _ := strconv.ParseFloat(v["seconds"], 64); h.Took != 0 { //nolint:errcheck // then it is 0
			assert.InDelta(s, h.Took.Seconds(), seconds, 1e-6)
		}
	}

	var running struct {
		Processes []struct {
			Name, Host, Program, Version, Millrace string
			PID                                    int
			Started                                string `json:"started_at"`
			Seen                                   string `json:"seen_at"`
			Serves                                 []admin.Serving
		}
	}
	s.said(&running, "processes")
	require.Len(s, running.Processes, 2)
	for i, v := range s.view("processes") {
		p := running.Processes[i]
		var serves []admin.Serving
		require.NoError(s, json.Unmarshal([]byte(v["serves"]), &serves))
		assert.Equal(s, p.Serves, serves)
		s.equal(v, "namespace", "", "name", p.Name, "host", p.Host, "pid", p.PID, "program", p.Program, "version", p.Version,
			"millrace", p.Millrace, "consumers", len(serves), "started_at", p.Started, "seen_at", p.Seen)
	}

	states := map[string]string{}
	for _, v := range s.view("claims") {
		states[v["consumer"]+" "+v["message_key"]] = v["state"]
	}
	for key, state := range map[string]string{"billing " + id(7): "DISCARDED", "billing " + id(8): "OPEN", "mail " + id(20): "COMPLETED"} {
		assert.Equal(s, state, states[key], key)
	}
	for name, counts := range map[string]string{
		"consumers": "consumers", "claims": "claims", "outcomes": "outcomes", "dropped": "dropped", "versions": "versions", "steps": "steps",
		"leases": "leases", "replays": "replays", "outbox": "outbox", "relays": "outbox_relays",
	} {
		assert.Len(s, s.view(name), s.count(`SELECT COUNT(*) FROM millrace_`+counts), name)
	}
	assert.Equal(s, "account 17", s.view("versions")[0]["aggregate"])
	assert.Equal(s, "sixteen bytes  0", string(unhex(s, s.view("steps")[0]["id"])))
	assert.Contains(s, s.run("outbox", "shards").out, s.view("relays")[0]["name"])
	for _, v := range s.view("outbox") {
		assert.Contains(s, []string{"PENDING", "RETRYING", "HELD", "PARKED", "SENT"}, v["state"])
	}

	views := strings.Count(strings.Join(dialect.For(s.db.Dialect, dialect.Names{Prefix: dialect.DefaultPrefix}).DropViews(), "\n"), "VIEW ")
	assert.Len(s, promised(), views)
	assert.Equal(s, views, 5+10, "each was read")

	// What nobody but an attacker or a bug wrote is shown as well.
	s.exec(`UPDATE millrace_messages SET status = 99, due_at = ?, received_at = ?, message_id = ? WHERE id = 6`, int64(math.MaxInt64), int64(math.MinInt64), []byte{})
	s.exec(`UPDATE millrace_messages SET received_at = ?, message_id = ?, lease_token = 0 WHERE id = 5`, int64(math.MaxInt64), []byte{1, 2})
	odd := s.view("messages")
	s.equal(odd[4], "message_key", "sha256:02", "received_at", "")
	s.equal(odd[5], "state", "99", "message_key", "", "received_at", "", "due_at", "")
	s.exec(`INSERT INTO millrace_consumers (id, namespace, name, epoch, key_source, retention, created_at) VALUES (?, ?, ?, 0, ?, 0, 1)`,
		-1, []byte("\xff"), []byte("\x00lease\x00mails"), []byte("uuid"))
	s.equal(s.view("consumers")[0], "id", -1, "consumer", "mails", "of_leases", 1, "retention_seconds", "", "namespace", s.key("\xff"))
}

// stamps is the form of times in JSON.
const stamps = "2006-01-02T15:04:05.000Z"

func (s *shop) said(into any, args ...string) {
	s.Helper()
	r := s.run(append(args, "--json")...)
	require.Zero(s, r.code, r.err)
	require.NoError(s, json.Unmarshal([]byte(r.out), into))
}

// key is a key in a view. PostgreSQL and MySQL show what is not text in hexadecimal digits.
func (s *shop) key(key string) string {
	switch {
	case s.db.Dialect == "sqlite":
	case !utf8.ValidString(key), s.db.Dialect == "postgres" && strings.ContainsRune(key, 0):
		return fmt.Sprintf("0x%X", key)
	}
	return key
}

func (s *shop) equal(row map[string]string, pairs ...any) {
	s.Helper()
	for i := 0; i < len(pairs); i += 2 {
		column := pairs[i].(string) //nolint:errcheck,forcetypeassert // of this test
		if _, is := row[column]; assert.True(s, is, column) {
			assert.Equal(s, fmt.Sprint(pairs[i+1]), row[column], "%s of %v", column, row)
		}
	}
}

// view reads a view in the order of its first columns. It has the promised columns and no payload.
func (s *shop) view(name string) (all []map[string]string) {
	s.Helper()
	rows, err := s.db.QueryxContext(s.Context(), `SELECT * FROM millrace_v_`+name+` ORDER BY 1, 2`)
	require.NoError(s, err, name)
	defer rows.Close() //nolint:errcheck // rows.Err tells
	columns, err := rows.Columns()
	require.NoError(s, err)
	assert.Equal(s, promised()[name], "`"+strings.Join(columns, "`, `")+"`", name)
	for rows.Next() {
		row := map[string]any{}
		require.NoError(s, rows.MapScan(row))
		line := map[string]string{}
		for column, value := range row {
			line[column] = shown(value)
			assert.NotContains(s, line[column], `{"order"`, "%s.%s", name, column)
		}
		all = append(all, line)
	}
	require.NoError(s, rows.Err(), name)
	return all
}

// shown is a value of a view as JSON has it.
func shown(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case []byte:
		value = string(v)
	case time.Time:
		return v.UTC().Format(stamps)
	}
	text := fmt.Sprint(value)
	if at, err := time.Parse("2006-01-02 15:04:05.999999", text); err == nil {
		return at.Format(stamps)
	}
	return text
}

func unhex(t testing.TB, uuid string) (raw []byte) {
	t.Helper()
	_, err := fmt.Sscanf(strings.ReplaceAll(uuid, "-", ""), "%x", &raw)
	require.NoError(t, err)
	return raw
}

// promised are the columns of each view that docs/sql-views.md names.
var promised = sync.OnceValue(func() map[string]string {
	page, err := os.ReadFile("../../../docs/sql-views.md")
	if err != nil {
		panic(err)
	}
	all := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `millrace_v_(\\w+)` \\| [^|]+ \\| ([^|]+) \\|").FindAllStringSubmatch(string(page), -1) {
		all[row[1]] = row[2]
	}
	return all
})
