// Package admin is the operators' side of an inbox. It lists the stuck messages and their errors, tells the
// story of a message, and carries out the operators' decisions, each of which it records in the audit table.
// The command millrace and the dashboard are built on it; a service can build tools of its own.
//
//	ops := admin.New(store)
//	groups, err := ops.FailureGroups(ctx, admin.Filter{Consumer: "billing"}) // why messages fail
//	err = ops.Retry(ctx, id, admin.Operator{Name: "ada", Reason: "the bank is back"}, nil)
//
// # In the order of an incident
//
//   - [Admin.Backlog] counts the open messages of each consumer, [Admin.FailureGroups] groups them by error,
//     [Admin.Find] lists them, and [Admin.Story] returns everything that is known of one.
//   - [Admin.Retry], [Admin.Discard] and [Admin.ReplacePayload] decide about one message. [Admin.RetryAll] and
//     [Admin.DiscardAll] decide about all messages that a [Filter] matches; [Admin.Preview] counts them first.
//   - [Admin.Pause] stops a consumer's queue, and [Admin.Resume] starts it again.
//   - [Admin.Waiting] lists the aggregates that hold messages, and [Admin.SetVersion] releases the messages.
//   - [Admin.StepsInDoubt] lists the steps in doubt, and [Admin.DecideStep] records whether one was done.
//   - [Admin.Audit] lists the decisions and who made them, and [Admin.Processes] the processes of the service.
//
// For migrations and rebuilds: [Admin.Import] records messages that another system has handled,
// [Admin.Forget] makes a consumer handle everything again, and [Admin.Journal] lists completed messages that
// are kept whole.
//
// # Payloads
//
// [Admin.Find] and [Admin.Story] read payloads without an audit. A tool for people should show messages with
// [Admin.Search] and [Admin.Outline], which omit payloads, and with [Admin.Reveal], which records in the
// audit table who read a payload.
package admin
