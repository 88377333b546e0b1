package door

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// Serve serves next behind the Door until ctx ends, then finishes the running requests.
func (d *Door) Serve(ctx context.Context, listener net.Listener, next http.Handler) error {
	server := &http.Server{
		Handler: d.Guard(next), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second,
		WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	if err := server.Shutdown(closing); err != nil {
		return err
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
