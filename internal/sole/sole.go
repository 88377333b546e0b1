// Package sole finds an error that is the only error of a call.
package sole

// As returns the error of type T that err is, or wraps. It does not look into joined errors: if one
// call publishes to two brokers, one of them may have the message although the other reports T.
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
