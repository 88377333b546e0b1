// Package river measures the durable queue against River, a job queue on PostgreSQL, used as
// a library. It is a module of its own, so that River is no dependency of Millrace. See
// tests/bench for how the figures are to be read.
package river
