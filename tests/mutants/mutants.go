package main

import "slices"

var mutants = slices.Concat(rules, guards, panics, batchMutants)

var rules = []mutant{
	{
		name: "drop the claim", by: exhaust("Inbox"), file: "inbox/claim_acquire.go",
		old: "return rows == 1, err", new: "return rows >= 0, err",
	},
	{
		name: "commit before the handler", by: exhaust("Inbox"), file: "inbox/claim_handle.go",
		old: "\tproduced, err := h(cl.msg)\n\tif err != nil {\n\t\treturn nil, cl.Rollback(err)",
		new: "\t_, _ = cl.Commit(nil)\n\tproduced, err := h(cl.msg)\n\tif err != nil {\n\t\treturn nil, cl.Rollback(err)",
	},
	{
		name: "ack before the commit", by: exhaust("Inbox"), file: "inbox/claim_handle.go",
		old: "\tcl, err := c.claim(msg, v)\n", new: "\tmsg.Ack()\n\tcl, err := c.claim(msg, v)\n",
	},
	{
		name: "commit what failed", by: exhaust("Inbox"), file: "inbox/claim_finish.go",
		old: "if err := cl.tx.Rollback(); err != nil {", new: "if err := cl.tx.Commit(); err != nil {",
	},
	{
		name: "take a refused COMMIT for one in doubt", by: conformance("a COMMIT that is refused"), file: "inbox/claim_finish.go",
		old: "cl.refused = dialect.Classify(err) == dialect.Contention", new: "cl.refused = dialect.Classify(err) == dialect.TooLarge",
	},
	{
		name: "keep no outcome", by: exhaust("Inbox"), file: "inbox/claim_seal.go",
		old: "\tif len(produced) > 0 {\n\t\tif err := cl.storeProduced(", new: "\tif len(produced) > 99 {\n\t\tif err := cl.storeProduced(",
	},
	{
		name: "settle before the ack", by: conformance("a service that closes before the ack"), file: "inbox/store_settle.go",
		old: "\t\tcase <-cl.msg.Acked():\n\t\t\tacked = append(acked, cl)\n\t\t\tcontinue\n\t\tdefault:\n",
		new: "\t\tdefault:\n\t\t\tacked = append(acked, cl)\n\t\t\tcontinue\n",
	},
	{
		name: "forget the outcome of a duplicate", by: exhaust("Inbox"), file: "inbox/claim_lookup.go",
		old: "if row.Outcome != nil {", new: "if row.Outcome != nil && row.Result > 9 {",
	},
	{
		name: "let a copy go while the broker may lack what was produced", file: "inbox/claim_finish.go",
		by:  conformance("a waiting copy while the outcome is on its way"),
		old: "if returned || cl.collidedWith != nil {", new: "if cl.collidedWith != nil {",
	},
	{
		name: "answer a copy with the failure of another", by: conformance("copies wait for a failing first"), file: "inbox/claim_finish.go",
		old: "\tcl.end()\n\tcl.turn.Fail()\n", new: "\tcl.end()\n\tcl.turn.Settle(cl.hash)\n",
	},
	{
		name: "take another payload for a copy", by: conformance("a collision is parked once per payload"), file: "inbox/claim_lookup.go",
		old: "&& !d.is(row.Hash) {", new: "&& !d.is(row.Hash) && row.Result > 9 {",
	},
	{
		name: "do not judge what may be too old", by: conformance("redelivery after the retention, with a time"), file: "inbox/claim_judge.go",
		old: "if what != insert { //", new: "if what >= done { //",
	},
	{
		name: "publish to the outbox outside of the transaction", by: exhaust("Inbox and outbox"), file: "inbox/claim_seal.go",
		old: "\t\tm.SetContext(ctx)\n", new: "\t\tm.SetContext(cl.ctx)\n",
	},
	{
		name: "take a refusal of the broker for its confirm", by: exhaust("Inbox and outbox"), file: "outbox/lane.go",
		old: "return f.tried && f.err == nil", new: "return f.tried",
	},
	{
		name: "mark as sent what was not tried", by: guard{"./tests/outbox", "TestOrderIsKept"}, file: "outbox/lane.go",
		old: "return f.tried && f.err == nil", new: "return f.err == nil",
	},
	{
		name: "never write off what was sent", by: exhaust("Inbox and outbox"), file: "outbox/ledger.go",
		old: "add(len(l.sent), d.sql.DeleteSent, dialect.Pairs(l.sent))", new: "_ = d.sql.DeleteSent",
	},
	{
		name: "send without a lease", file: "outbox/pump.go",
		by:  guard{"./tests/outbox", "TestAFrozenRelaySendsNothingAhead/sqlite"},
		old: "return p.lease.valid() && !p.lease.doubtful() && !p.closing.Load()", new: "return !p.closing.Load()",
	},
	{
		name: "overtake what is unsent of a key", file: "outbox/turns.go",
		by:  guard{"./outbox", "TestNothingOvertakesWhateverHappens"},
		old: "return before != nil && !before.back",
		new: "return true || before != nil",
	},
	{
		name: "send what is due before an earlier one of its key", file: "outbox/reader.go",
		by:  guard{"./outbox", "TestNothingOvertakesWhateverHappens"},
		old: "if l.behind == 0 {",
		new: "if l.behind == 0 || l.id > 0 {",
	},
	{
		name: "go on with a key after one of it failed", file: "outbox/lane.go",
		by:  guard{"./tests/outbox", "TestOrderIsKept"},
		old: "if letter.keyed && l.stopped[letter.hash] ||", new: "if letter.id < 0 && l.stopped[letter.hash] ||",
	},
	{
		name: "hold without telling the aggregate", by: exhaust("VersionGate that holds"), file: "inbox/gate_held.go",
		old: "s.dialect.Gate.RaiseHeld, cl.waitsFor.Number,", new: "s.dialect.Gate.RaiseHeld, 0,",
	},
	{
		name: "release nothing", by: exhaust("VersionGate that holds"), file: "inbox/gate_held.go",
		old: "if !cl.mayRelease(a) {", new: "if a.heldTo >= 0 {",
	},
	{
		name: "release the version itself", by: exhaust("VersionGate that holds"), file: "inbox/gate_held.go",
		old: "return min(v, math.MaxInt64-1) + 1 }", new: "return min(v, math.MaxInt64-1) }",
	},
	{
		name: "let a gap pass", by: exhaust("VersionGate that holds"), file: "inbox/gate.go",
		old: "if cl.knownStale(g, versions) {\n\t\tcl.verdict = stale\n\t\treturn nil\n\t}", new: "if cl.knownStale(g, versions) || g != nil {\n\t\treturn nil\n\t}",
	},
	{
		name: "ack a failure that was not stored", by: exhaust("Durable, storing on failure"), file: "pubsub/intake.go",
		old: "\tif !stored {\n\t\tmsg.Nack()\n\t\treturn\n\t}\n", new: "\t_ = stored\n",
	},
	{
		name: "ack before it is stored", by: exhaust("Durable, storing first"), file: "pubsub/intake.go",
		old: "\thandled, err := i.put(ctx, batch...)\n", new: "\tfor _, msg := range batch {\n\t\tmsg.Ack()\n\t}\n\thandled, err := i.put(ctx, batch...)\n",
	},
	{
		name: "store nothing", by: exhaust("Durable, storing first"), file: "pubsub/intake.go",
		old: "return i.queue.PutOpen(ctx, i.topic, msgs...)", new: "return nil, ctx.Err()",
	},
	{
		name: "wait for a twin without a bound", file: "inbox/claim_acquire.go",
		by:  guard{"./tests", "TestConformance$/^TwinWait_runs_out$/postgres"}, // on SQLite the twin waits to begin
		old: "if !span.wait(cl.consumer.config.TwinWait - cl.twinSpent) {", new: "if !span.wait(time.Hour) {",
	},
	{
		name: "undo a finished run when the router closes", file: "inbox/claim_span.go",
		by:  conformance("the router closes in the middle of a handler"),
		old: "context.WithCancel(context.WithoutCancel(values))", new: "context.WithCancel(values)",
	},
	{
		name: "let a handler run as long as it likes", by: conformance("a handler slower than Timeout"), file: "inbox/claim_span.go",
		old: "\ts.cancelHandler() // first, so that a live context never holds a dead transaction\n\ts.endTx()\n", new: "",
	},
	{
		name: "give out the transaction after its end", file: "internal/ambient/tx.go",
		by:  conformance("the transaction used after the handler returned"),
		old: "\tif t.ended.Load() {\n\t\treturn nil, false\n\t}\n\tt.taken", new: "\tt.taken",
	},
	{
		name: "purge without a line", by: conformance("redelivery after the retention, with a time"), file: "inbox/janitor.go",
		old: "if _, err := tx.ExecContext(ctx, s.dialect.RaisePurgeLine, line, c.ID); err != nil {",
		new: "if _, err := tx.ExecContext(ctx, s.dialect.RaisePurgeLine, line-line, c.ID); err != nil {",
	},
	{
		name: "delete what was not archived", by: conformance("Archive"), file: "inbox/janitor.go",
		old: "\t\treturn fmt.Errorf(\"archive: %w\", err)\n", new: "\t\t_ = err\n",
	},
	{
		name: "delete what an archive lost in a deadlock", file: "inbox/janitor.go",
		by:  guard{"./tests", "TestConformance$/^an_archive_that_goes_on_after_a_deadlock$/mysql"},
		old: "dialect.Classify(err) == dialect.NoTransaction {", new: "dialect.Classify(err) == dialect.NoTransaction {\n\t\treturn nil",
	},
	{
		name: "trust the codec with the claim", file: "inbox/claim_verify.go",
		by:  guard{"./tests/durable", "TestACodecThatLosesADeadlock/^before_the_commit_of_a_handler$/mysql"},
		old: "\treturn cl.verifyClaim(late)\n", new: "\treturn nil\n",
	},
	{
		name: "join keys without their lengths", by: guard{"./internal/keycode", "."}, file: "internal/keycode/keycode.go",
		old: "\t\tb = binary.AppendUvarint(b, uint64(len(p)))\n", new: "\t\t_ = binary.MaxVarintLen64\n",
	},
	{
		name: "store a UUID and its bytes alike", by: guard{"./internal/keycode", "."}, file: "internal/keycode/keycode.go",
		old: "formBytes   = 2 //", new: "formBytes   = 1 //",
	},
	{
		name: "confirm the lease of another", by: guard{"./tests", "TestLeases$/lease:_slow_loser/sqlite"}, file: "internal/dialect/common.go",
		old: "\t\tSET token = 0, until = {now} + ?\n\t\tWHERE consumer = ? AND message_id = ? AND token = ?`,",
		new: "\t\tSET token = 0, until = {now} + ?\n\t\tWHERE consumer = ? AND message_id = ? AND token <> -?`,",
	},
	{
		name: "take a lease that lives", by: guard{"./tests", "TestLeases$/lease:.*/sqlite"}, file: "internal/dialect/common.go",
		old: "\t\t\tWHERE millrace_leases.until <= {now}`,", new: "\t\t\tWHERE millrace_leases.until > 0`,",
	},
	{
		name: "janitor: close a row that a queue has out", file: "internal/dialect/common.go",
		by:  guard{"./tests/durable", "TestWhatTheHandlerCommittedAndFailedIsNotLost/^the_janitor$/postgres/first"},
		old: " AND (page.lease_token = 0 OR page.due_at <= {now}) AS shadowed", new: " AS shadowed",
	},
	{
		name: "take a claim back whose row is gone", file: "inbox/claim_failure.go",
		by:  guard{"./tests/durable", "TestWhatTheHandlerCommittedAndFailedIsNotLost/^another_process$/postgres/first"},
		old: "if cl.lease != nil { // else", new: "if cl.lease != nil && ctx == nil { // else",
	},
	{
		name: "close a row without its lease", file: "inbox/claim_seal.go",
		by:  guard{"./tests/durable", "TestConformance/^a_lease_that_is_lost$/postgres"},
		old: "\tif closed != 1 {\n\t\treturn ErrLost\n\t}\n\treturn nil\n}\n\n// queuePublishes",
		new: "\tif closed > 1 {\n\t\treturn ErrLost\n\t}\n\treturn nil\n}\n\n// queuePublishes",
	},
	{
		name: "replay: refuse nothing", by: guard{"./tests/exhaust", "TestRefusedReplays/sqlite"}, file: "inbox/claim_replay.go",
		old: "return cl.under(ReplayRefuse), nil", new: "return false, nil",
	},
	{
		name: "replay: refuse what an operator wants", file: "inbox/claim_replay.go",
		by:  conformance("an operator who wants a refused replay handled"),
		old: "return !allowed, nil", new: "return true, nil",
	},
	{
		name: "replay: refuse only what has no claim", file: "inbox/claim_replay.go",
		by:  guard{"./tests/durable", "TestConformance/^refuse_what_was_taken_and_put_back$/sqlite"},
		old: "return !allowed, nil", new: "return false, nil",
	},
	{
		name: "replay: suppress nothing", by: guard{"./tests/exhaust", "TestReplays/sqlite/^Inbox that suppresses$"}, file: "inbox/claim_acquire.go",
		old: "if cl.under(ReplaySuppress) {", new: "if cl.under(ReplayRefuse) {",
	},
	{
		name: "replay: store what is suppressed", by: conformance("suppress what a handler publishes"), file: "outbox/publisher.go",
		old: "case ambient.Suppresses(ctx, len(rows)):", new: "case ambient.Suppresses(ctx, len(rows)) && p == nil:",
	},
	{
		name: "replay: take the place of what is still to be tried", by: conformance("a replay of what is still to be tried"), file: "inbox/claim_replayfailed.go",
		old: "cl.openRow, cl.openAs, cl.asFirstSent = true, stored.FailedRetryable, !marked", new: "cl.openRow, cl.openAs, cl.asFirstSent = true, stored.FailedRetryable, false",
	},
	{
		name: "replay: hold back an order key", by: guard{"./tests/durable", "TestConformance/^a_refused_replay_in_a_queue_with_an_order$/sqlite"},
		file: "internal/dialect/queue.go",
		old:  "SET status = 6, order_key = NULL, reason", new: "SET status = 6, reason",
	},
	{
		name: "import: take a copy for a collision", by: conformance("an imported key"), file: "inbox/claim_lookup.go",
		old: "if row.Result != stored.ResultImported && !d.is", new: "if row.Result != stored.ResultImported+9 && !d.is",
	},
	{
		name: "operators: skip a gap that is another one now", file: "inbox/admin/aggregate.go",
		by:  guard{"./tests/gate", "TestSkipGapWhileAMissingMessageIsHandled"},
		old: "if row.Version != from-1 || len(first) == 0 || first[0].Version != to+1 {", new: "if false {",
	},
	{
		name: "import: remember from the import on", by: conformance("an imported key and its retention"), file: "inbox/admin/importbatch.go",
		old: "if k.now {", new: "if k.now || k.at != 0 {",
	},
	{
		name: "import: tell nobody of what is too old", by: conformance("a message older than all that was imported"), file: "inbox/admin/importbatch.go",
		old: "if b.line > 0 {", new: "if b.line < 0 {",
	},
	{
		name: "step: record the result before the call", by: steps("Before, a provider that can be asked"), file: "inbox/step_run.go",
		old: "\tresult, err = r.step.Do(", new: "\t_, _ = r.end(ctx, stepEnd{state: stored.StepDone})\n\tresult, err = r.step.Do(",
	},
	{
		name: "step: keep no intent", by: steps("Before, a provider that can be asked"), file: "inbox/step_row.go",
		old: "record the intent: %w\", database.Explain(err))\n\t}\n",
		new: "record the intent: %w\", database.Explain(err))\n\t}\n\t_, _ = s.db.ExecContext(ctx, \"DELETE FROM millrace_steps WHERE state = 1\")\n",
	},
	{
		name: "step: call in doubt without asking", by: steps("Deduplicate"), file: "inbox/step_row.go",
		old: "taken, row.doubtful, r.problem = n == 1, row.State == stored.StepBegun, row.Problem", new: "taken, row.doubtful, r.problem = n == 1, false, row.Problem",
	},
	{
		name: "step: let a stale owner record", by: stepBody("a step whose lease was lost"), file: "internal/dialect/steps.go",
		old: "WHERE id = ? AND token = ? AND state = 1`,", new: "WHERE id = ? AND token <> -?`,",
	},
	{
		name: "step: take one that somebody is at", by: stepBody("a step of a process that died"), file: "internal/dialect/steps.go",
		old: "VALUES (?, ?, ?, ?, ?, ?, 1, ?, {now} + ?,", new: "VALUES (?, ?, ?, ?, ?, ?, 1, ?, {now} + 0 * ?,",
	},
	{
		name: "step: call in a transaction", by: stepBody("a step in a transaction"), file: "inbox/step.go",
		old: "open := r.of.inTx || ambient.From(ctx).Open()", new: "open := r.of.inTx && ambient.From(ctx) == nil",
	},
	{
		name: "step: prepare what is parked", by: stepBody("Before does not run for what is not handled"), file: "inbox/claim_before.go",
		old: "if err != nil || objection.text != \"\" {", new: "if err != nil || objection.text == \"-\" {",
	},
	{
		name: "step: purge what is open", by: stepBody("steps are purged"), file: "internal/dialect/steps.go",
		old: "page.until, EXISTS (", new: "page.until, NOT EXISTS (",
	},
	{
		name: "step: make ids of the epoch", by: guard{"./tests", "TestID/ids_never_change/sqlite"}, file: "inbox/step_id.go",
		old: "[]byte(s.name.Name), s.id}", new: "[]byte(s.name.Name), s.id, {byte(s.name.Epoch)}}",
	},
}
