package main

// batchMutants break what makes each message of a batch one that is handled once.
var batchMutants = []mutant{
	{
		name: "batch: count a failed run as handled", file: "inbox/batch_run.go",
		by:  guard{"./tests/batch", "TestConformance/a_message_that_fails"},
		old: "\tif err != nil {\n\t\treturn r.fail(err)\n\t}\n", new: "\t_ = err\n",
	},
	{
		name: "batch: take every key for new", file: "inbox/batch_claim.go",
		by:  guard{"./tests/batch", "TestConformance/messages_that_another_process_has_handled"},
		old: "\tif !all {\n", new: "\tif !all && over {\n",
	},
	{
		name: "batch: claim in the order of arrival", file: "inbox/batch_claim.go",
		by:  guard{"./tests/batch", "TestConformance/a_batch/postgres"},
		old: "\tslices.SortFunc(sorted, func(x, y *member) int { return bytes.Compare(x.delivery.id, y.delivery.id) })\n", new: "\t_ = bytes.Compare\n",
	},
	{
		name: "batch: leave stored messages in the table", file: "inbox/batch_run.go",
		by:  guard{"./tests/batch", "TestConformance/stored_messages"},
		old: "\treturn r.closeLeased(ctx, tx)\n", new: "\treturn nil\n",
	},
	{
		name: "batch: keep the turn of a key", file: "inbox/batch.go",
		by:  guard{"./tests/batch", "TestConformance/a_message_whose_context_ends_while_it_waits"},
		old: "\tm.turn.Fail()\n\tm.delivery", new: "\tm.delivery",
	},
	{
		name: "batch: forget that the handler committed", file: "inbox/batch_run.go",
		by:  guard{"./tests/batch", "TestConformance/a_handler_that_commits_and_fails"},
		old: "\tif !whole.inDoubt {\n", new: "\tif whole.inDoubt {\n",
	},
	{
		name: "batch: do not restore the messages", file: "inbox/batch_run.go",
		by:  guard{"./tests/batch", "TestConformance/a_handler_that_changes_its_messages"},
		old: "\t\tm.delivery.as.Seen.Give(m.delivery.msg)\n", new: "\t\t_ = m.delivery.as.Seen\n",
	},
	{
		name: "batch: let one message end the handler's context", file: "inbox/batch_gather.go",
		by:  guard{"./tests/batch", "TestConformance/contexts_that_end_while_the_batch_runs"},
		old: "m.batch.live.Add(-1) == 0", new: "m.batch.live.Add(-1) >= 0",
	},
	{
		name: "batch: have a copy join its batch", file: "inbox/batch.go",
		by:  guard{"./tests/batch", "TestConformance/copies_in_one_batch"},
		old: "\tif !taken { // by a copy\n", new: "\tif !taken && msg == nil { // by a copy\n",
	},
	{
		name: "batch: do not look whether versions follow one another", file: "inbox/batch_gate.go",
		by:  guard{"./tests/batch", "TestGate/versions_that_another_process_applied"},
		old: "case number > applied && number == following(applied) && number >= one.row.First:", new: "case m != nil:",
	},
	{
		name: "batch: release nothing", file: "inbox/batch_gate.go",
		by:  guard{"./tests/batch", "TestGate/random_order_in_the_queues_of_two_processes"},
		old: "if one.row.HeldTo > one.row.Version {", new: "if false {",
	},
	{
		name: "batch: hold messages that nothing releases", file: "inbox/batch_gate.go",
		by:  guard{"./tests/batch", "TestGate/gaps_that_a_batch_holds"},
		old: "\t\t\theld = one.early[n-1].version.Number\n", new: "\t\t\theld = 0\n",
	},
	{
		name: "batch: keep the versions that a handler committed", file: "inbox/claim_failure.go",
		by:  guard{"./tests/batch", "TestGate/versions_of_a_handler_that_commits_and_fails"},
		old: "RetreatAggregate, a.from,", new: "RetreatAggregate, a.Number,",
	},
}
