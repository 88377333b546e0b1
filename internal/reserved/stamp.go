package reserved

// Fields by which a message says which version of which aggregate it is.
const (
	Aggregate = "millrace_aggregate"
	Version   = "millrace_version"
)
