package inbox

import (
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// These functions call a function of the service. A panic becomes an error.

func callFingerprint(of func(*message.Message) ([]byte, error), msg *message.Message) (print []byte, err error) {
	defer recovered("fingerprint", &err)
	if print, err = of(msg); err != nil {
		err = fmt.Errorf("fingerprint: %w", sound(err))
	}
	return print, err
}

func callOrderKey(of func(*message.Message) (string, error), msg *message.Message) (key string, err error) {
	defer recovered("order key", &err)
	if key, err = of(msg); err != nil {
		err = fmt.Errorf("order key: %w", sound(err))
	}
	return key, err
}

func callNotBefore(of func(*message.Message) time.Time, msg *message.Message) (at time.Time, err error) {
	defer recovered("NotBefore", &err)
	return of(msg), nil
}

// callClassify returns cause if Classify returns nil or panics; a panic is added to it.
func callClassify(of func(error) error, cause error) (classified error) {
	defer func() {
		if r := recover(); r != nil {
			classified = fmt.Errorf("%w (%w)", cause, &panicError{"Classify", r})
		}
	}()
	if classified = sound(of(cause)); classified == nil {
		return cause
	}
	return classified
}
