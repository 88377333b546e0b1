package main

// panics are the places where a function of the service is called and nobody is above.
var panics = []mutant{
	{
		name: "panic: call a function as if somebody were above", file: "inbox/queue_outside.go",
		by:  guard{"./tests/durable", "TestFunctionsThatPanic/^parked_panics_in_a_queue$/sqlite"},
		old: "\t\tif r := recover(); !returned {", new: "\t\tif r := any(nil); !returned {",
	},
	{
		name: "panic: of a key", file: "inbox/queue_outside.go",
		by:  guard{"./tests/durable", "TestFunctionsThatPanic/^Key_panics_in_a_queue$/sqlite"},
		old: "\tif r := recover(); r != nil {\n\t\t*err", new: "\tif r := any(nil); r != nil {\n\t\t*err",
	},
	{
		name: "panic: of a logger", file: "inbox/store.go",
		by:  guard{"./tests/durable", "TestFunctionsThatPanic/^Logger_panics_in_a_queue$/sqlite"},
		old: "s.log = steady.Logger(logger, func() { s.panics.Add(1) })", new: "s.log = logger\n\t_ = steady.Logger",
	},
	{
		name: "panic: of the methods of an error", file: "inbox/queue_outside.go",
		by:  guard{"./tests/durable", "TestFunctionsThatPanic/^Classify_returns_a_nil_pointer_panics_in_a_queue$/sqlite"},
		old: "\task(err)\n\treturn err\n", new: "\treturn err\n",
	},
	{
		name: "panic: of a Classify that returns nil", file: "inbox/callback.go",
		by:  guard{"./tests/durable", "TestFunctionsThatPanic/^Classify_returns_none_panics_in_a_queue$/sqlite"},
		old: "classified = sound(of(cause)); classified == nil {", new: "classified = sound(of(cause)); cause == nil {",
	},
	{
		name: "panic: of an archive", file: "inbox/janitor.go",
		by:  conformance("a function of the service that panics in the background"),
		old: "\t\tdefer recovered(\"Archive\", &err)\n", new: "",
	},
	{
		name: "panic: of a publisher in the background", file: "inbox/store_settle.go",
		by:  conformance("a function of the service that panics in the background"),
		old: "\tdefer recovered(\"Publish\", &err)\n", new: "",
	},
	{
		name: "panic: of a list of blobs", file: "inbox/store_blob.go",
		by:  conformance("a function of the service that panics in the background"),
		old: "\t\tdefer recovered(\"List\", &err)\n", new: "",
	},
	{
		name: "panic: of an observer of the janitor", file: "inbox/observer.go",
		by:  conformance("a function of the service that panics in the background"),
		old: "s.survive(ctx, func(ctx context.Context) { o.Observe(ctx, told) })", new: "o.Observe(ctx, told)",
	},
	{
		name: "panic: of a heartbeat", file: "inbox/lease_beat.go",
		by:  guard{"./tests", "TestAHeartbeatThatPanics"},
		old: "l.outlive(func() { again = l.extend() != nil && l.beatAgain() }, func() {})", new: "again = l.extend() != nil && l.beatAgain()",
	},
	{
		name: "panic: keep the key that was taken before", file: "inbox/lease_obtain.go",
		by:  guard{"./tests", "TestAKeyIsFreeAfterAPanic"},
		old: "\t\tif !asked { //", new: "\t\tif asked && l == nil { //",
	},
	{
		name: "panic: keep a lease for ever", file: "inbox/lease_beat.go",
		by:  guard{"./tests", "TestAKeyIsFreeAfterAPanic"},
		old: "\t\tif !returned {\n\t\t\t_ = l.release(errPanic)", new: "\t\tif returned {\n\t\t\t_ = l.release(errPanic)",
	},
	{
		name: "panic: leave a step that is done in doubt", file: "inbox/step_row.go",
		by:  conformance("a result whose codec panics"),
		old: "\tdefer recovered(\"seal it\", &err)\n", new: "",
	},
}
