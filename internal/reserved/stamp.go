package reserved

// Fields that name the aggregate and the version of a message.
const (
	Aggregate = "millrace_aggregate"
	Version   = "millrace_version"
)
