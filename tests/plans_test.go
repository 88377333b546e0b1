package tests_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/testdb"
)

// fill makes the tables big enough for a planner to care, and says so.
func fill(t *testing.T, db *testdb.DB) {
	t.Helper()
	db.Analyse(t, crowd(t, db)...)
}

// crowd makes the tables big enough for a planner to care, if it knew.
func crowd(t *testing.T, db *testdb.DB) (tables []string) {
	t.Helper()
	b := db.Bytes
	mod := func(n int) string { return fmt.Sprintf("i %% %d", n) }
	for _, row := range []struct{ table, columns, values string }{
		{"consumers", "id, namespace, name, epoch, key_source, retention, created_at",
			"i, " + b(mod(1600)) + ", " + b("i") + ", 0, " + b("1") + ", 1, i"},
		{"claims", "consumer, message_id, result, processed_at, payload_hash, token",
			mod(5) + " + 1, " + b("i") + ", 1, i, 1, 1"},
		{"outcomes", "consumer, message_id, created_at, topic, messages",
			mod(5) + " + 1, " + b("i") + ", i * 1000000000000, " + b("1") + ", " + b("1")},
		{"results", "consumer, message_id, body", mod(5) + " + 1, " + b("i") + ", " + b("1")},
		{"messages", "consumer, message_id, status, topic, uuid, metadata, payload, payload_hash, received_at, due_at, " +
			"order_key, original, aggregate, version, payload_ref, error_group",
			mod(5) + " + 1, " + b("i") + ", " + mod(40) + ", " + b("1") + ", " + b("i") + ", " + b("1") + ", " + b("1") +
				", 1, i, i * 1000000000000, " + b(mod(70)) + ", " + b("i") + ", " + b(mod(300)) + ", i, " + b("i") +
				", CASE WHEN i % 3 = 0 THEN i % 90 END"},
		{"blobs", "name", b("i")},
		{"journal", "consumer, message_id, received_at, processed_at, topic, uuid, metadata, payload, payload_hash, payload_ref",
			mod(5) + " + 1, " + b("i") + ", i, i, " + b("1") + ", " + b("i") + ", " + b("1") + ", " + b("1") + ", 1, " + b("i")},
		{"history", "consumer, message_id, slot, number, at, received_at, attempts, status, failed",
			mod(5) + " + 1, " + b("i") + ", 1, 1, i, i, 1, 4, 1"},
		{"replays", "namespace, name, source, spec, reached, last_id, sent, skipped, state, actor, reason, started_at, moved_at",
			b(mod(5)) + ", " + b("i") + ", " + b("1") + ", " + b("1") + ", 1, 1, 0, 0, 1, " + b("1") + ", " + b("1") + ", 1, 1"},
		{"versions", "consumer, aggregate, version, first_version, token, message_id, payload_hash",
			mod(5) + " + 1, " + b("i") + ", i, 1, 1, " + b("i") + ", 1"},
		{"audit", "at, actor, action, reason, consumer, message_id, detail, bulk, messages",
			"i, " + b("1") + ", " + b("1") + ", " + b("1") + ", " + mod(5) + " + 1, " + b("i") + ", " + b("1") +
				", CASE WHEN i % 9 = 0 THEN i END, 80"},
		{"audit_messages", "entry, number, at, message_id, original, detail",
			mod(80) + ", i, i, " + b("i") + ", " + b("i") + ", " + b("1")},
		{"dropped", "at, consumer, message_id, topic, reason",
			"i, " + mod(5) + " + 1, " + b("i") + ", " + b("1") + ", " + b("1")},
		{"activity", "minute, consumer, completed, failed, duplicates, stale, held, parked, handling_us",
			"i, " + mod(5) + " + 1, 1, 0, 0, 0, 0, 0, 1"},
		{"outbox", "key_hash, created_at, topic, uuid", "i, i, '1', '1'"},
		{"processes", "namespace, name, token, host, pid, program, version, millrace, consumers, serves, started_at, seen_at",
			b(mod(5)) + ", " + b("i") + ", i, " + b("1") + ", 1, " + b("1") + ", " + b("1") + ", " + b("1") + ", 1, " + b("1") + ", i, i"},
		{"steps", "id, namespace, consumer, message_id, name, epoch, state, token, until, started_at",
			b("i") + ", " + b(mod(1600)) + ", " + b(mod(5)) + ", " + b("i") + ", " + b("1") + ", 0, 2, 1, i, i"},
		{"leases", "consumer, message_id, token, until", mod(5) + " + 1, " + b("i") + ", 1, i"},
	} {
		db.Do(t, fmt.Sprintf(`
			INSERT INTO millrace_%s (%s)
			WITH RECURSIVE n (j) AS (SELECT 0 UNION ALL SELECT j + 1 FROM n WHERE j < 79)
			SELECT %s FROM (SELECT a.j * 80 + b.j + 1 AS i FROM n a CROSS JOIN n b) numbers`, row.table, row.columns, row.values))
		tables = append(tables, "millrace_"+row.table)
	}
	return tables
}

// hot are the statements that must find their rows by an index, with arguments.
var hot = map[string][]any{
	"Claim":            {1, []byte("x"), 1, 1},
	"Lookup":           {1, []byte("7")},
	"Retake":           {1, 1, 1, []byte("7")},
	"SelectClaim":      {1, []byte("7")},
	"SelectClaims":     {1, [][]byte{[]byte("7"), []byte("8")}},
	"OpenClaim":        {1, []byte("x"), 1, 1},
	"RetakeClaims":     {1, 1, [][]byte{[]byte("7"), []byte("8")}},
	"ReopenClaim":      {1, [][]byte{[]byte("7"), []byte("8")}, 1},
	"CloseClaim":       {1, 1, []byte("7")},
	"SelectConsumer":   {[]byte("7"), []byte("7"), 0},
	"SelectPurgeLine":  {7},
	"RaiseRetention":   {8, 7, 8},
	"SetKeySource":     {[]byte("k"), 7},
	"LockConsumer":     {7},
	"RaisePurgeLine":   {1, 7},
	"NotePurge":        {7},
	"CountExpired":     {50, 1, 10},
	"InsertOutcome":    {1, []byte("x"), []byte("t"), []byte("m")},
	"DeleteOutcomes":   {1, [][]byte{[]byte("7"), []byte("8")}},
	"SelectOutcomes":   {[]byte("7"), nil, nil, nil, nil, 1, 100, 0},
	"SelectOutcome":    {1, []byte("7")},
	"TouchMessage":     {[]byte("e"), 1, 1, 1, 1, []byte("7"), 7},
	"MoveMessage":      {1, []byte("r"), 1, 1, 1, []byte("7"), 7},
	"DeleteMessage":    {1, []byte("7"), 7},
	"SelectMessage":    {7, []byte("7")},
	"SelectHeld":       {1, []byte("7")},
	"DeleteMessages":   {1, [][]byte{[]byte("7")}, []int64{7}},
	"StoryClaims":      {[]byte("7"), []byte("7")},
	"StoryMessages":    {[]byte("7"), []byte("7"), []byte("7"), []byte("7"), 100},
	"StoryAudit":       {[]byte("7"), []byte("7"), []byte("7"), []byte("7"), []byte("7"), []byte("7"), 100},
	"StoryDropped":     {[]byte("7"), []byte("7"), 10},
	"SelectClaimsPage": {1, []byte("7"), 50},
	"LockExpired":      {1, [][]byte{[]byte("7"), []byte("8")}, 5000},
	"DeleteClaims":     {1, [][]byte{[]byte("7"), []byte("8")}},
	"DeleteResults":    {1, [][]byte{[]byte("7"), []byte("8")}},
	"SelectShadowed":   {7, 10},
	"PurgeDropped":     {50, 10},
	"PurgeLeases":      {50, 10},
	"AddActivity":      {1, 0, 0, 0, 0, 0, 1, []byte("7"), []byte("7"), 0},
	"SelectActivity":   {6300, []byte("7")},
	"PurgeActivity":    {50, 10},
	"LeaveProcess":     {[]byte("7"), []byte("7"), 7},
	"SelectProcesses":  {[]byte("7"), []byte("7"), []byte("7"), 7, 10},
	"AcquireLease":     {1, []byte("x"), 1, 1},
	"SelectLease":      {1, []byte("7")},
	"ConfirmLease":     {1, 1, []byte("7"), 1},
	"ExtendLease":      {1, 1, []byte("7"), 1},
	"ReleaseLease":     {1, []byte("7"), 1},

	"Gate.StepAggregate":    {1, []byte("x"), 1, 1, 1, []byte("m"), 1, 0, 1, 1},
	"Gate.ClaimAndAdvance":  {1, []byte("7"), 1, 1, 7, []byte("7"), 6},
	"Gate.AdvanceAggregate": {1, 1, []byte("m"), 1, 1, []byte("7"), 6, 7},
	"Gate.SelectAggregate":  {1, []byte("7")},

	"Gate.LockAggregates":    {1, []byte("x"), 0, 1, 0, []byte{}, 0},
	"Gate.SelectAggregates":  {1, [][]byte{[]byte("7"), []byte("8")}},
	"Gate.AdvanceAggregates": {1, []byte("x"), 1, 1, 1, []byte("m"), 1, 0},

	"Gate.LockAggregate":    {1, []byte("7")},
	"Gate.HoldMessage":      {7, []byte("r"), []byte("a"), 1, false, 1, 1, []byte("7"), 2, 1},
	"Gate.ExpireHeld":       {[]byte("r"), 1, 1, []byte("7")},
	"Gate.RetreatAggregate": {6, []byte{}, 1, []byte("7"), 1},
	"Gate.RaiseHeld":        {1, 1, []byte("7")},
	"Gate.CountHeld":        {1, []byte("7"), 10},
	"Gate.SelectHeld":       {1, []byte("7"), 10},
	"Gate.ReleaseHeld":      {[]byte("r"), 1, []byte("7"), 7},
	"Gate.SelectReleased":   {1, []byte("7"), 7},
	"Gate.SelectHeldAges":   {1, 7, 10},
	"Gate.SelectExpired":    {[]int64{7, 8}},
	"Gate.LockHeld":         {[]int64{7, 8}},
	"Gate.SetVersion":       {1, []byte("7"), 1, 0, 0, []byte{}},
	"Gate.SelectForgetable": {1, []byte("7"), 10},
	"Gate.SelectVersions":   {1, []byte("7"), 10},
	"Gate.DeleteVersions":   {1, [][]byte{[]byte("7"), []byte("8")}},
	"Gate.ReleaseAll":       {[]byte("r"), []int64{7, 8}},
	"Gate.LowerPurgeLine":   {7},
	"Queue.SelectNextDue":   {1, 1000, 1, 1000},
	"Queue.SelectDue":       {1, 10},
	"Queue.SelectFront":     {1, 1000, 10, true, 1, 1000, 10},
	"Queue.SelectHeads":     {true, 1, []byte("7"), 10},
	"Queue.LockDue":         {1, []int64{7, 8}, 10},
	"Queue.SelectStored":    {1, []byte("7")},
	"Queue.SelectKeys":      {1, [][]byte{[]byte("7"), []byte("8")}},
	"Queue.SelectAllowed":   {1, []byte("7")},
	"Queue.AllowMessage":    {1, []byte("7"), 7},
	"Queue.StoreMessage":    {1, []byte("x"), 1, []byte("t"), nil, nil, []byte("o"), []byte("k"), []byte("v"), []byte("u"), []byte("m"), []byte("p"), 1, []byte("r"), nil, 0, nil, 0},
	"Queue.SelectSettled":   {1, [][]byte{[]byte("7"), []byte("8")}},
	"Queue.CompleteClaim":   {1, []byte("x"), 1},
	"Queue.DropOpenClaim":   {1, []byte("7")},
	"Queue.DropLeased":      {1, []byte("7"), 1},
	"Queue.JoinMessage":     {1, []byte("7")},
	"Queue.SettleLeased":    {[]byte("r"), 1, []byte("7"), 1},
	"Queue.LeaseMessages":   {1, 1, 1, 1, [][]byte{[]byte("7"), []byte("8")}},
	"Queue.LeaseOut":        {1, 1, 1, [][]byte{[]byte("7"), []byte("8")}},
	"Queue.Unlease":         {1, 1, [][]byte{[]byte("7"), []byte("8")}, []int64{1, 2}},
	"Queue.HandOut":         {1, 1, [][]byte{[]byte("7"), []byte("8")}, []int64{1, 2}},
	"Queue.PutBack":         {1, [][]byte{[]byte("7"), []byte("8")}, []int64{1, 2}},
	"Queue.CompleteLeased":  {1, [][]byte{[]byte("7"), []byte("8")}, []int64{1, 2}},
	"Queue.DeleteLeased":    {1, [][]byte{[]byte("7"), []byte("8")}, []int64{1, 2}},
	"Queue.SelectOpen":      {99}, // of one of five, any row would do
	"Queue.SelectFirst":     {1, 1, 10},
	"Queue.SelectAdoptable": {1, 10},
	"Queue.AdoptMessage":    {9, []byte("7"), 1, []byte("7")},
	"Queue.AdoptLate":       {1, []byte("7")},
	"Queue.AdoptClaim":      {9, []byte("7"), 1, []byte("7")},
	"Queue.ParkAdopted":     {[]byte("7"), 6, []byte("r"), 1, 1, []byte("7")},
	"Queue.AdoptOutcome":    {9, []byte("7"), 1, []byte("7")},
	"Queue.AdoptResult":     {9, []byte("7"), 1, []byte("7")},
	"Queue.ExtendLeases":    {1, 1, [][]byte{[]byte("7"), []byte("8")}, []int64{1, 2}},
	"Queue.HoldLeased":      {1, 1, []byte("7"), 1},
	"Queue.MoveLeased":      {1, 1, []byte("e"), 1, 1, []byte("r"), 1, 1, []byte("7"), 1},
	"Queue.ParkLeased":      {[]byte("r"), 1, 1, 1, []byte("7"), 1},
	"Queue.NameLeased":      {[]byte("x"), 1, nil, 4, []byte("r"), 1, 1, []byte("7"), 1},
	"Queue.CloseLeased":     {1, []byte("7"), 1},

	"Remedy.SearchStatus":   {nil, nil, 0, 5000, 1, 7, 10, 10},
	"Remedy.SearchGroup":    {nil, nil, 0, 5000, 4, 6, 1, 12, 10, 10},
	"Remedy.SelectListed":   {[]int64{7, 8}},
	"Remedy.SelectErrors":   {[]int64{7, 8}},
	"Remedy.GroupFailures":  {nil, nil, 0, 5000, 1, 6, 10, 10},
	"Remedy.GroupFailure":   {nil, nil, 0, 5000, 4, 6, 1, 12, 10},
	"Remedy.RetryMessages":  {[]byte("r"), 1, 1, [][]byte{[]byte("7"), []byte("8")}, 6},
	"Remedy.DiscardMessage": {1, []byte("7"), 6},
	"Remedy.UndoRetry":      {6, 1, []byte("r"), 0, 1, 1, []byte("7"), []byte("r")},
	"Remedy.ReplacePayload": {[]byte("p"), 0, nil, 1, 1, []byte("7"), 6, 1},
	"Remedy.ReplaceHash":    {1, 1, []byte("7")},
	"Remedy.PauseConsumer":  {true, 7},
	"Remedy.ServeConsumer":  {1, 7},
	"Remedy.CountStatus":    {1, 6, 10},
	"Remedy.CountLapsed":    {1, 1, 1, 2, 10},
	"Remedy.CountDue":       {1, 1, 10, 1, 1, 10},
	"Remedy.SelectOldest":   {1, 1, 1, 1, 10},
	"Remedy.CountOutcomes":  {1, 1, 10},

	"Remedy.SearchStatusBack": {nil, nil, 0, 5000, 1, 7, 5000, 10},
	"Remedy.SearchGroupBack":  {nil, nil, 0, 5000, 4, 6, 1, 12, 5000, 10},

	"Remedy.ListOutlines": {[]int64{7, 8}},
	"Remedy.ListAudit":    {1, 5000, 10},
	"Remedy.SelectAudit":  {[]int64{7, 8}},

	"Remedy.CountBulk":          {1, 9, 1, []byte("d"), []byte("n"), []byte("a"), []byte("r")},
	"Remedy.SelectBulk":         {9, 1},
	"Remedy.ListBulkMessages":   {7, 100, 10},
	"Remedy.OldestAudit":        {1, 10},
	"Remedy.DeleteAudit":        {[]int64{7, 8}},
	"Remedy.DeleteBulkMessages": {7, 1000},

	"Remedy.ImportClaims":   {1, []byte("x"), 1, 1},
	"Remedy.SelectImported": {1, [][]byte{[]byte("7"), []byte("8")}},

	"Gate.SelectWaiting": {1, []byte("7"), 10},
	"Gate.SelectApplied": {1, [][]byte{[]byte("7"), []byte("8")}},

	"Outbox.ListParked":   {7, 10},
	"Outbox.SelectEnds":   {},
	"Outbox.SelectNext":   {7},
	"Outbox.SelectCaused": {7, 20, "billing/7", 10},

	"Blobs.InsertBlob":     {[]byte("x"), nil},
	"Blobs.SelectBlob":     {[]byte("7")},
	"Blobs.SelectReferred": {[][]byte{[]byte("7"), []byte("8")}, [][]byte{[]byte("7"), []byte("8")}},
	"Blobs.SelectNames":    {[]byte("7"), []byte("8"), 10},
	"Blobs.DeleteBlob":     {[]byte("7")},

	"Journal.InsertJournal": {
		1, []byte("x"), []byte("t"), nil, nil, nil, []byte("u"), []byte("m"), []byte("p"), 1, 0, nil, nil,
	},
	"Journal.DeleteJournal": {1, [][]byte{[]byte("7"), []byte("8")}},
	"Journal.SelectJournal": {7, 6000, 1, nil, nil, 0, 10000, 10},
	"Journal.StoryJournal":  {[]byte("7"), []byte("1")},
	"History.InsertHistory": {1, []byte("p"), 1, []byte("t"), 3, [][]byte{[]byte("7"), []byte("8")}, 3, [][]byte{[]byte("7"), []byte("8")}},
	"History.StoryHistory":  {[]byte("7"), []byte("1")},
	"History.DeleteHistory": {1, [][]byte{[]byte("7"), []byte("8")}},
	"Queue.AdoptHistory":    {9, []byte("7"), 1, []byte("7")},
	"Journal.CountClaims":   {1, [][]byte{[]byte("7"), []byte("8")}},
	"Outbox.SelectSent":     {7, 6000, nil, nil, 0, 10000, 10},
	"Replays.SelectReplay":  {[]byte("1"), []byte("7")},
	"Replays.AdvanceReplay": {7, 1, 0, 7, 6, 0},
	"Steps.InsertStep":      {[]byte("x"), []byte("n"), []byte("c"), []byte("m"), []byte("s"), 0, 1, 1},
	"Steps.SelectStep":      {[]byte("7")},
	"Steps.TakeStep":        {1, 0, 1, []byte("7"), 1},
	"Steps.EndStep":         {2, 0, nil, nil, 1, []byte("7"), 1},
	"Steps.TouchStep":       {1, []byte("7")},
	"Steps.MoveSteps":       {[]byte("8"), []byte("7"), []byte("n"), []byte("c")},
	"Steps.StorySteps":      {[]byte("7"), []byte("7")},
	"Steps.SelectDoubtful":  {[]byte("7"), 10},
	"Steps.SelectExpired":   {2, 20, 50, 10},
	"Steps.DeleteSteps":     {50, [][]byte{[]byte("7"), []byte("8")}},
}

// ofTheReleaseBefore are indexes that stay for one release, since processes of the one before may run beside it.
var ofTheReleaseBefore = map[string][]string{
	"postgres": {"ix_millrace_messages_due", "ix_millrace_messages_order"},
	"mysql":    {"key=by_due", "key=by_aggregate"}, // and by_order, by a name that the outbox has, too
	"sqlite":   {"ix_millrace_messages_due", "ix_millrace_messages_order"},
}

func TestHotStatementsUseAnIndex(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		migrate(t, db, inbox.Config{})
		fill(t, db)
		t.Run("a scan is recognised", func(t *testing.T) {
			plan := explain(t, db, `SELECT token FROM millrace_claims WHERE token = 7`, nil)
			assert.True(t, slices.ContainsFunc(plan, func(s string) bool { return scans(db.Dialect, s) }), "%q", plan)
		})
		for _, name := range slices.Sorted(maps.Keys(hot)) {
			if _, field, _ := strings.Cut(name, "."); lacks(dialectOf(t, db), field) {
				continue
			}
			t.Run(name, func(t *testing.T) {
				query, args := spelled(t, db, name, hot[name])
				plan := explain(t, db, query, args)
				for _, step := range plan {
					assert.False(t, scans(db.Dialect, step), "%s\n%s", step, strings.Join(plan, "\n"))
					for _, index := range ofTheReleaseBefore[db.Dialect] {
						if name == "Queue.SelectOpen" { // any index will do
							break
						}
						assert.NotRegexp(t, index+`\b`, step, "it serves the release before alone")
					}
				}
				if db.Dialect == "postgres" && strings.Contains(query, "ON CONFLICT") {
					assert.Contains(t, strings.Join(plan, "\n"), "Conflict Arbiter Indexes")
				}
			})
		}
	})
}

// TestListsAreReadInTheOrderOfAnIndex: what tells of the backlog, and lists of it, reads no more than it says.
func TestListsAreReadInTheOrderOfAnIndex(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		migrate(t, db, inbox.Config{})
		fill(t, db)
		for name, index := range map[string]string{
			"Remedy.SearchStatus": "messages_status", "Remedy.SearchGroup": "messages_group", "Remedy.GroupFailures": "messages_status",
			"Remedy.SearchStatusBack": "messages_status", "Remedy.SearchGroupBack": "messages_group",
			"Remedy.GroupFailure": "messages_group", "Remedy.CountStatus": "messages_status", "Remedy.CountLapsed": "messages_status",
			"Remedy.SelectOldest": "messages_status", "Queue.SelectFirst": "messages_status", "Gate.SelectWaiting": "messages_held", "Remedy.ListAudit": "audit_consumer",
			"Remedy.OldestAudit": "audit_consumer",
			"Remedy.CountDue":    map[string]string{"postgres": "messages_lined", "mysql": "messages_ready", "sqlite": "messages_lined"}[db.Dialect],
		} {
			query, args := spelled(t, db, name, hot[name])
			steps := explain(t, db, query, args)
			plan := strings.Join(steps, "\n")
			assert.Contains(t, plan, indexOf(db, index), "%s\n%s", name, plan)
			assert.False(t, sortsRows(steps), "%s comes in the order of its index\n%s", name, plan)
			if name == "Gate.SelectWaiting" || name == "Remedy.ListAudit" { // of which a page costs what it shows
				assert.False(t, sorts(plan), "%s\n%s", name, plan)
			}
		}
		if db.Dialect == "sqlite" { // the others see whether few messages are kept, or all
			query, args := spelled(t, db, "Outbox.SelectSent", hot["Outbox.SelectSent"])
			plan := strings.Join(explain(t, db, query, args), "\n")
			assert.False(t, sorts(plan), "a page of what was sent costs what it shows\n%s", plan)
		}
	})
}

// indexOf is how a plan names an index that is called table_columns.
func indexOf(db *testdb.DB, name string) string {
	if db.Dialect == "mysql" {
		_, columns, _ := strings.Cut(name, "_")
		return "key=by_" + columns
	}
	return "ix_millrace_" + name
}

// sortsRows reports whether a plan sorts rows of a table. To sort what was made of the rows
// that a limit left over is another thing.
func sortsRows(plan []string) bool {
	for i, step := range plan {
		switch {
		case step == "SCAN page":
			return false
		case strings.Contains(step, "<derived"):
		case strings.Contains(step, "filesort"), strings.Contains(step, "TEMP B-TREE"):
			return true
		case strings.Contains(step, "Sort") && !slices.ContainsFunc(plan[i:], func(s string) bool { return strings.Contains(s, "Limit") }):
			return true
		}
	}
	return false
}
