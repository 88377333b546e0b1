// Package httpkey sends an idempotency key with the HTTP requests of a handler, so that a
// provider that honours it does nothing twice, however often the message is handled:
//
//	client := &http.Client{Transport: &httpkey.Transport{}}
//
//	req, err := http.NewRequestWithContext(msg.Context(), http.MethodPost, "https://mail.example/send", body)
//	resp, err := client.Do(req)
//
// The key is made as [inbox.ID] is, of the message that the request's context belongs to and of
// method and URL. Requests of one handler that have these in common need names:
//
//	req = req.WithContext(inbox.WithStep(req.Context(), "invoice"))
//
// Within the Do of an inbox.Step the key is the id that Do was given; what Verify sends has another.
package httpkey

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/requests"
)

// DefaultHeader is the name that most providers use.
const DefaultHeader = "Idempotency-Key"

// Transport is an [http.RoundTripper] that sets the header of every request except GET, HEAD,
// OPTIONS and TRACE. It does not change a header that is set. The zero value is ready to use, and
// safe for concurrent use.
//
// Transport refuses a request if a different request of the same run had the same key, since the
// provider would treat it as a repetition. Requests differ in method, URL or body. A request whose
// body cannot be read twice (it has no GetBody) differs from every other.
type Transport struct {
	// Base sends the requests. Defaults to http.DefaultTransport.
	Base http.RoundTripper

	// Header is the name of the header. Defaults to Idempotency-Key.
	Header string

	// Required refuses requests outside the handling of a message, with inbox.ErrNoMessage. By
	// default they are sent without a key.
	Required bool
}

// ErrOneKey says that two different requests would have one idempotency key.
var ErrOneKey = errors.New("another request of this handler had the same idempotency key: " +
	"give each its own, with inbox.WithStep")

// RoundTrip sets the key and sends the request.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	base, header := t.Base, t.Header
	if base == nil {
		base = http.DefaultTransport
	}
	if header == "" {
		header = DefaultHeader
	}
	broken := req.URL == nil || req.Header == nil // Base reports that
	if broken || safe(req.Method) || req.Header.Get(header) != "" {
		return base.RoundTrip(req)
	}
	key, err := t.key(req, header)
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // as every RoundTripper must
		}
		return nil, fmt.Errorf("httpkey: %s %s: %w", req.Method, req.URL.Redacted(), err)
	}
	if key == "" {
		return base.RoundTrip(req)
	}
	keyed := req.Clone(req.Context())
	keyed.Header.Set(header, key)
	return base.RoundTrip(keyed)
}

func safe(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// key returns the key of req, "" outside the handling of a message.
func (t *Transport) key(req *http.Request, header string) (string, error) {
	if req.Response != nil && req.Response.Request != nil { // a redirect repeats the same request
		if key := req.Response.Request.Header.Get(header); key != "" {
			return key, nil
		}
	}
	ctx := req.Context()
	parts := inbox.StepNames(ctx)
	if len(parts) == 0 {
		parts = []string{req.Method, req.URL.String()}
	}
	key, err := inbox.ID(ctx, parts...)
	if errors.Is(err, inbox.ErrNoMessage) && !t.Required {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	fingerprint, err := fingerprintOf(req)
	if err != nil {
		return "", err
	}
	if made := requests.From(ctx); made != nil && !made.Note(key, fingerprint) {
		return "", ErrOneKey
	}
	return key, nil
}

// fingerprintOf returns equal fingerprints for equal requests.
func fingerprintOf(req *http.Request) (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%s %s\n", req.Method, req.URL) // writing to a hash cannot fail
	switch {
	case req.Body == nil || req.Body == http.NoBody:
	case req.GetBody == nil:
		_, _ = fmt.Fprint(h, rand.Uint64(), rand.Uint64()) //nolint:gosec // tells requests apart, keeps no secret
	default:
		body, err := req.GetBody()
		if err != nil {
			return sum, fmt.Errorf("read the body: %w", err)
		}
		_, err = io.Copy(h, body)
		if err := errors.Join(err, body.Close()); err != nil {
			return sum, fmt.Errorf("read the body: %w", err)
		}
	}
	h.Sum(sum[:0])
	return sum, nil
}

// CloseIdleConnections closes the idle connections of Base.
func (t *Transport) CloseIdleConnections() {
	if base, can := t.Base.(interface{ CloseIdleConnections() }); can {
		base.CloseIdleConnections()
	}
}
