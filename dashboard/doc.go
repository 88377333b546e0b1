// Package dashboard is a web page for operators. It begins with what is wrong, and shows which messages
// an inbox and an outbox hold, why messages are stuck, and what operators did; operators can retry and
// discard messages, correct a payload, send what a handler returned, skip the versions that an aggregate
// misses, and pause consumers.
//
// A [Handler] is an http.Handler for the service's own server, behind the service's own
// authentication, under any prefix:
//
//	pages, err := dashboard.New(store, dashboard.Config{
//		Title:    "shop, production",                     // on every page and every form
//		Outbox:   out,                                    // an outbox.Publisher, if there is one
//		Operator: func(r *http.Request) string { … },     // who is signed in
//	})
//	mux.Handle("/admin/messages/", requireLogin(pages))
//
// The handler starts no goroutine, keeps only a few figures in memory, and reads the tables through
// the store, so several processes may serve it. [Handler.Run] is optional: it samples the backlog
// while nobody has a page open, so that the charts have no gaps.
//
// # Who may do what
//
// The handler asks for no password: whoever reaches it sees the metadata of messages. Each change is
// a POST with a reason, which goes into the audit table with the name that Config.Operator returns.
// Without Config.Operator, or if it returns no name, the dashboard changes nothing. Config.ReadOnly
// forbids changes to all.
//
// The dashboard shows a payload only to an operator who gives a reason, which is audited too.
//
// # Security
//
// The server renders the pages, which work without JavaScript. They load nothing from elsewhere: a
// content security policy forbids scripts and styles except the two embedded files.
// http.CrossOriginProtection refuses a POST from another site. If the browser does not say where a
// request comes from, it compares the Origin with the Host, so a proxy in front must keep the Host.
// Payloads are in no URL and in no log.
package dashboard
