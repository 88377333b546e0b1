// Package dashboard shows in a browser what an inbox and an outbox hold, why messages are
// stuck, and what operators did about it; and lets them do it: retry, discard, pause.
//
// A [Handler] is an http.Handler for the service's own server, behind the service's own
// authentication, under any prefix:
//
//	pages, err := dashboard.New(store, dashboard.Config{
//		Outbox:   out,                                    // of package outbox, if there is one
//		Operator: func(r *http.Request) string { … },     // who is signed in
//	})
//	mux.Handle("/admin/messages/", requireLogin(pages))
//
// It starts no goroutine, keeps nothing but a few figures in memory, and reads the tables
// through the store: several processes may serve it. Handler.Run, if it is called, samples
// the backlog while nobody looks.
//
// # Who may do what
//
// The handler asks for no password: whoever reaches it sees the metadata of messages. What
// changes something is a POST with a reason, which goes into the audit table with the name
// that Config.Operator returned. Without Config.Operator, or where it returns no name,
// nothing can be changed; Config.ReadOnly forbids it to all.
//
// A payload is shown only to an operator who asks for it and says why; that is audited too.
//
// # What it sends and takes
//
// Pages are rendered here and work without JavaScript. They load nothing from elsewhere: a
// content security policy forbids scripts and styles but the two embedded files. A POST from
// another site is refused (http.CrossOriginProtection), which compares the Origin with the
// Host where the browser does not say where a request comes from: a proxy in front must keep
// the Host. Payloads are in no URL and in no log.
package dashboard
