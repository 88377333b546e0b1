package stored

// A LeftError says why an action on many messages left one as it was. It has done others.
type LeftError struct{ Cause error }

func (e *LeftError) Error() string { return e.Cause.Error() }
func (e *LeftError) Unwrap() error { return e.Cause }

// A CursorError says that no page of a list has returned a cursor. It names the list.
type CursorError string

func (e CursorError) Error() string { return "the cursor is not one of " + string(e) }
