package ambient

import "sync/atomic"

// Runs are the runs of an innermost handler for one delivery. The zero value is ready.
type Runs struct {
	calls  atomic.Int32
	inside atomic.Int32 // runs that have not returned
	failed atomic.Value // the last error, boxed
}

type boxed struct{ err error }

// Enter counts a run and returns the number of earlier runs. The run ends with [Runs.Leave].
func (r *Runs) Enter() int {
	r.inside.Add(1)
	return int(r.calls.Add(1)) - 1
}

// Leave ends a run.
func (r *Runs) Leave() { r.inside.Add(-1) }

// Running reports whether the handler has begun and has not returned.
func (r *Runs) Running() bool { return r.inside.Load() > 0 }

// Failed records the error of the handler.
func (r *Runs) Failed(err error) { r.failed.Store(boxed{err}) }

// Failure returns the error of the handler, nil if it had none.
func (r *Runs) Failure() error {
	b, _ := r.failed.Load().(boxed)
	return b.err
}
