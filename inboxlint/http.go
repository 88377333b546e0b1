package inboxlint

var httpAnalyzer = newAnalyzer("inboxhttp",
	"find HTTP requests of a handler while its transaction is open (advice)\n\n"+
		"The request keeps a connection and the claim while another server works, and is sent again in each run. Make it a step\n"+
		"in Inbox.Before, or store an intent. -inboxhttp=false turns this off.",
	"pitfalls.md#a-slow-call-in-the-transaction", checkHTTP)

var requests = union(
	set("net/http.Get", "net/http.Head", "net/http.Post", "net/http.PostForm"),
	methods("net/http.Client", "Do", "Get", "Head", "Post", "PostForm"),
)

func checkHTTP(f *findings) {
	for _, call := range f.handled(f.handlers) {
		if requests[f.called(call)] {
			f.add(call, "an HTTP request in the transaction of a handler: it keeps a connection and the claim, and is sent again in each run; make it a step in Inbox.Before, or store an intent")
		}
	}
}
