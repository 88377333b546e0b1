// Package sole finds an error that is the whole answer of a call.
package sole

// As returns the error of type T that err is, or wraps alone. One that is joined with other errors is
// not the whole answer: of two brokers that one call publishes to, the other one may have nothing.
func As[T error](err error) (found T, is bool) {
	for err != nil {
		if found, is = err.(T); is { //nolint:errorlint // errors.As looks into joined errors
			return found, true
		}
		one, wraps := err.(interface{ Unwrap() error }) //nolint:errorlint // as above
		if !wraps {
			break
		}
		err = one.Unwrap()
	}
	return found, false
}
