// Package admin is the operators' side of an inbox: what is stuck and why, the story of a message, and the
// decisions about it, each of which the audit table keeps. The command millrace and the dashboard are made
// of it; a service uses it for tools of its own.
//
//	ops := admin.New(store)
//	groups, err := ops.FailureGroups(ctx, admin.Filter{Consumer: "billing"}) // why messages fail
//	err = ops.Retry(ctx, id, admin.Operator{Name: "ada", Reason: "the bank is back"}, nil)
//
// # In the order in which an incident needs it
//
// [Admin.Backlog] counts what is open for each consumer, [Admin.FailureGroups] tells why messages fail,
// [Admin.Find] lists them, and [Admin.Story] tells all that is known of one. [Admin.Retry],
// [Admin.Discard] and [Admin.ReplacePayload] decide about one message, [Admin.RetryAll] and
// [Admin.DiscardAll] about all that a [Filter] matches, which [Admin.Preview] counts before.
// [Admin.Pause] and [Admin.Resume] stop a consumer's queue and let it go on. [Admin.Waiting] lists the
// aggregates that hold messages, and [Admin.SetVersion] releases them. [Admin.DecideStep] says whether a
// step in doubt was done. [Admin.Audit] lists who decided what.
//
// # Payloads
//
// [Admin.Find] and [Admin.Story] read payloads and tell nobody. A tool for people shows messages with
// [Admin.Search] and [Admin.Outline], which leave payloads out, and with [Admin.Reveal], which
// keeps who looked.
package admin
