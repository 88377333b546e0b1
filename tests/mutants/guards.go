package main

// guards are what keeps a transaction, a key, a router and a message what they are.
var guards = []mutant{
	{
		name: "owned: let others commit", file: "internal/owned/guard.go",
		by:  guard{"./internal/database", "TestEnded$/sqlite"},
		old: "\tg.refused.Store(true)\n\treturn true\n", new: "\tg.refused.Store(true)\n\treturn false\n",
	},
	{
		name: "owned: take no notice of a rollback", file: "internal/owned/guard.go",
		by:  guard{"./internal/database", "TestEnded$/sqlite"},
		old: "state == nobody || state == owner {", new: "state == nobody && g == nil {",
	},
	{
		name: "owned: refuse the next user of a connection", file: "internal/owned/guard.go",
		by:  guard{"./internal/database", "TestWhatIsWrittenAfterALoss"},
		old: "{ g.state.Store(anyone) }", new: "{ g.state.Store(closing) }",
	},
	{
		name: "owned: leave another hook in the place of ours", file: "internal/owned/guard.go",
		by:  guard{"./internal/database", "TestAHookInThePlaceOfOurs"},
		old: "h.guard.missed.Swap(false) && !remembersAll(v)", new: "h.guard.missed.Swap(false) && remembersAll(v)",
	},
	{
		name: "owned: look through one wrapper only", file: "internal/owned/guard.go",
		by:  guard{"./internal/database", "TestEnded$/sqlite"},
		old: "\t\tc = inner\n\t}\n\treturn nil, ErrNoHook", new: "\t\tbreak\n\t}\n\treturn nil, ErrNoHook",
	},
	{
		name: "owned: use a connection whose COMMIT failed", file: "internal/owned/tx.go",
		by:  guard{"./internal/database", "TestAConnectionInDoubtIsNotUsedAgain$/mysql"},
		old: "{ return driver.ErrBadConn }) // makes", new: "{ return nil }) // makes",
	},
	{
		name: "owned: leave a transaction open whose COMMIT failed", file: "internal/owned/tx.go",
		by:  guard{"./internal/database", "TestAConnectionInDoubtIsNotUsedAgain$/sqlite"},
		old: "t.conn.ExecContext(ctx, \"ROLLBACK\")", new: "t.conn.ExecContext(ctx, \"SELECT 1\")",
	},
	{
		name: "owned: leave it to the user to end it", file: "internal/owned/tx.go",
		by:  guard{"./internal/database", "TestTheContextEndsTheTransaction$/sqlite"},
		old: "stop = context.AfterFunc(ctx, func() { _ = t.Rollback() })", new: "stop = context.AfterFunc(ctx, func() {})",
	},
	{
		name: "owned: begin once", file: "internal/owned/tx.go",
		by:  guard{"./internal/database", "TestBeginTakesAnotherConnection$/postgres"},
		old: "!errors.Is(err, driver.ErrBadConn) || left == 0", new: "!errors.Is(err, driver.ErrBadConn) || left <= 0",
	},
	{
		name: "owned: begin for ever", file: "internal/owned/tx.go",
		by:  guard{"./internal/database", "TestBeginTakesAnotherConnection$/postgres"},
		old: "|| left == 0 ||", new: "|| left == -9 ||",
	},
	{
		name: "durable: record an answer once", file: "pubsub/answer.go",
		by:  guard{"./tests/durable", "TestConformance/^an_answer_that_the_database_does_not_hear$/postgres"},
		old: "if err == nil || ctx.Err() != nil || !passing(err)", new: "if tries > 0 || !passing(err)",
	},
	{
		name: "durable: take a standby's refusal for the last word", file: "pubsub/answer.go",
		by:  guard{"./tests/durable", "TestConformance/^answers_during_a_fail-over$/sqlite"},
		old: "!passing(err) && (errors.Is(err, inbox.ErrLost)",
		new: "(!passing(err) || errors.Is(err, inbox.ErrReadOnly)) && (errors.Is(err, inbox.ErrLost) || errors.Is(err, inbox.ErrReadOnly)",
	},
	{
		name: "durable: wait for a dead session with all leases", file: "internal/dialect/mysql_queue.go",
		by:  guard{"./tests/durable", "TestConformance/^a_row_that_a_dead_session_holds$/mysql"},
		old: "FOR UPDATE SKIP LOCKED) free", new: "FOR UPDATE) free",
	},
	{
		name: "durable: take what the own handlers have after an outage", file: "pubsub/worker.go",
		by:  guard{"./tests/durable", "TestConformance/^an_outage_that_is_longer_than_a_lease$/postgres"},
		old: "if w.late() {", new: "if w.late() && w.queue == nil {",
	},
	{
		name: "keyless: blame a message for the database", file: "inbox/claim_keyless.go",
		by:  guard{"./tests/durable", "TestMessagesWithoutAKey/^a_key_that_is_looked_up_where_nobody_answers$/sqlite"},
		old: "kind == dialect.Unavailable || kind == dialect.Contention", new: "kind == dialect.Contention",
	},
	{
		name: "keyless: say that it is kept", file: "inbox/queue_keyless.go",
		by:  guard{"./tests/durable", "TestMessagesWithoutAKey/^no_key,_stored_first$/sqlite"},
		old: "kept, err = a, q.insertFailed(ctx, tx, consumer, a)", new: "kept, err = a, nil",
	},
	{
		name: "keyless: leave it to the inbox alone", file: "inbox/claim_keyless.go",
		by:  guard{"./tests/durable", "TestMessagesWithoutAKey/^no_key,_stored_on_failure$/sqlite"},
		old: "if cl.keyless.text == \"\" || a == nil || a.keep == nil {", new: "if cl.keyless.text == \"\" || a == nil || a.keep != nil {",
	},
	{
		name: "keyless: park it like others", file: "inbox/claim_keyless.go",
		by:  guard{"./tests/durable", "TestMessagesWithoutAKey/^no_key,_and_no_queue$/sqlite"},
		old: "\t\treturn stored.FailedTerminal\n\t}\n\treturn stored.Parked", new: "\t\treturn stored.Parked\n\t}\n\treturn stored.Parked",
	},
	{
		name: "keyless: look for no key again", file: "inbox/queue_keylessagain.go",
		by:  guard{"./tests/durable", "TestMessagesWithoutAKey/^what_an_operator_can_do_without_a_key$/sqlite"},
		old: "if !keycode.IsKeyless(l.row.MessageID) {", new: "if l.token != 0 {",
	},
	{
		name: "keyless: keep the claim of the id it had", file: "inbox/queue_keylessagain.go",
		by:  guard{"./tests/durable", "TestMessagesWithoutAKey/^what_an_operator_can_do_without_a_key$/sqlite"},
		old: "\tif err == nil {\n\t\terr = l.drop(ctx, tx, false)\n\t}\n", new: "",
	},
	{
		name: "keyless: order what has no order", file: "inbox/queue_keyless.go",
		by:  guard{"./tests/durable", "TestMessagesWithoutAKey/^an_order_key_that_cannot_be_had$/sqlite"},
		old: "a.status, a.delay, a.orderKey = stored.FailedTerminal, stored.Never, nil\n", new: "a.delay, a.orderKey = stored.Never, nil\n",
	},
	{
		name: "plugin: refuse who needs none", file: "inbox/claim_attend.go",
		by:  conformance("WithoutPlugin"),
		old: "if s.config.WithoutPlugin || !d.routed()", new: "if !d.routed()",
	},
	{
		name: "plugin: refuse what no router delivers", file: "inbox/claim_attend.go",
		by:  conformance("error then success"),
		old: "s.config.WithoutPlugin || !d.routed() ||", new: "s.config.WithoutPlugin ||",
	},
	{
		name: "plugin: let one router vouch for another", file: "inbox/claim_attend.go",
		by:  conformance("two routers with one store"),
		old: "d.ctx.Value(attended{}) != nil {", new: "s.work.expects.Load() {",
	},
	{
		name: "plugin: take Store.Run for one", file: "inbox/claim_attend.go",
		by:  conformance("Store.Run beside a router without the plugin"),
		old: "d.ctx.Value(attended{}) != nil {", new: "s.work.expects.Load() {",
	},
	{
		name: "plugin: say nothing", file: "inbox/claim_attend.go",
		by:  conformance("Retry inside without the plugin"),
		old: "\ts.unattended.said.Do(func() {\n", new: "\t_ = (func() {\n",
	},
	{
		name: "plugin: refuse at once", file: "inbox/claim_attend.go",
		by:  conformance("the refusal"),
		old: "\ts.pace(d.ctx)\n", new: "",
	},
	{
		name: "plugin: refuse always after the same pause", file: "inbox/claim_attend.go",
		by:  conformance("the refusal"),
		old: "outage.First<<min(s.unattended.seen.Add(1)-1, doublings)", new: "outage.First<<min(s.unattended.seen.Add(1)*0, doublings)",
	},
	{
		name: "plugin: do not know a stored message's router", file: "inbox/claim_attend.go",
		by:  conformance("a refused message that is stored first"),
		old: " || d.lease != nil && d.lease.queue.routed.Load()", new: "",
	},
	{
		name: "plugin: refuse what passed one inside the queue", file: "inbox/claim_attend.go",
		by:  conformance("a plugin inside the queue"),
		old: " && ctx.Value(attended{}) == nil {", new: " {",
	},
	{
		name: "plugin: do not see an inbox without a guard", file: "inbox/claim_attend.go",
		by:  conformance("an inbox that is added while the router runs"),
		old: "if d.ctx.Value(guardPassed{}) == nil {", new: "if d.ctx.Value(guardPassed{}) != nil {",
	},
	{
		name: "original: hand out the message itself", file: "internal/original/original.go",
		by:  guard{"./internal/original", "."},
		old: "o.UUID, bytes.Clone(o.Payload), maps.Clone(o.Metadata)", new: "o.UUID, o.Payload, o.Metadata",
	},
	{
		name: "original: believe a context of another message", file: "internal/original/original.go",
		by:  guard{"./internal/original", "."},
		old: "if o.UUID != msg.UUID || !known(", new: "if o == nil || !known(",
	},
	{
		name: "original: take what came for what is seen", file: "internal/original/delivery.go",
		by:  guard{"./tests/original", "TestConformance/./sqlite"},
		old: "\tif came != nil && came.Is(msg) {", new: "\tif came != nil {",
	},
	{
		name: "original: restore nothing", file: "internal/original/delivery.go",
		by:  guard{"./tests/original", "TestConformance/./sqlite"},
		old: "\tif !d.Seen.Is(msg) {\n\t\td.Seen.Give(msg)\n\t}\n", new: "",
	},
	{
		name: "original: publish what is restored", file: "internal/original/delivery.go",
		by:  guard{"./internal/original", "."},
		old: "\t\tif m == msg {\n\t\t\tproduced[i] = made\n\t\t}\n", new: "\t\tif m == msg {\n\t\t\tproduced[i] = m\n\t\t}\n\t\t_ = made\n",
	},
}
