package httpkey_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/httpkey"
	"github.com/millrace-go/millrace/inbox/lease"
	millrace "github.com/millrace-go/millrace/middleware"
)

// server keeps the keys of the requests that it gets.
type server struct {
	*httptest.Server
	mu   sync.Mutex
	keys []string
	body []string
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.keys = append(s.keys, r.Header.Get("Idempotency-Key")+r.Header.Get("Other-Key"))
		s.body = append(s.body, string(body))
		s.mu.Unlock()
		if r.URL.Path == "/moved" {
			http.Redirect(w, r, "/there", http.StatusTemporaryRedirect)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// seen returns the keys since the last call.
func (s *server) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := s.keys
	s.keys = nil
	return keys
}

// within runs h as the handler of a message with this id.
func within(t *testing.T, uuid string, h func(ctx context.Context)) {
	t.Helper()
	claims := inbox.NewLeases(&lease.Memory{}, inbox.LeasesConfig{})
	_, err := millrace.Deduplicate{Claims: claims, Consumer: "billing"}.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		h(msg.Context())
		return nil, nil
	})(message.NewMessage(uuid, nil))
	require.NoError(t, err)
}

func do(t *testing.T, ctx context.Context, transport *httpkey.Transport, method, url, body string, change ...func(*http.Request)) error {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	require.NoError(t, err)
	for _, c := range change {
		c(req)
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err == nil {
		require.NoError(t, resp.Body.Close())
	}
	return err
}

func TestARequestHasTheKeyOfItsMessage(t *testing.T) {
	s, transport := newServer(t), &httpkey.Transport{}
	var all []string
	for range 2 { // the second is a retry of the message
		within(t, "one", func(ctx context.Context) {
			id, err := inbox.ID(ctx, http.MethodPost, s.URL+"/send")
			require.NoError(t, err)
			require.NoError(t, do(t, ctx, transport, http.MethodPost, s.URL+"/send", "x"))
			require.NoError(t, do(t, ctx, transport, http.MethodPost, s.URL+"/send", "x"), "a retry of the request")
			require.NoError(t, do(t, ctx, transport, http.MethodPut, s.URL+"/send", "x"))
			keys := s.seen()
			assert.Equal(t, id, keys[0])
			assert.Equal(t, id, keys[1])
			assert.NotEqual(t, id, keys[2])
			assert.NotEmpty(t, keys[2])
			all = append(all, keys...)
		})
	}
	assert.Equal(t, all[:3], all[3:])
	within(t, "two", func(ctx context.Context) {
		require.NoError(t, do(t, ctx, transport, http.MethodPost, s.URL+"/send", "x"))
		assert.NotContains(t, all, s.seen()[0])
	})
	assert.Equal(t, []string{"x", "x", "x", "x", "x", "x", "x"}, s.body)
}

func TestTwoRequestsWithOneKeyAreRefused(t *testing.T) {
	s, transport := newServer(t), &httpkey.Transport{}
	within(t, "one", func(ctx context.Context) {
		post := func(ctx context.Context, path, body string, change ...func(*http.Request)) error {
			return do(t, ctx, transport, http.MethodPost, s.URL+path, body, change...)
		}
		require.NoError(t, post(ctx, "/send", "x"))
		err := post(ctx, "/send", "y")
		require.ErrorIs(t, err, httpkey.ErrOneKey)
		require.ErrorContains(t, err, "inbox.WithStep")
		invoice := inbox.WithStep(ctx, "invoice")
		require.NoError(t, post(invoice, "/send", "y"))
		require.NoError(t, post(inbox.WithStep(ctx, "reminder"), "/send", "y"))
		require.NoError(t, post(inbox.WithStep(invoice, "reminder"), "/send", "y"))
		require.ErrorIs(t, post(invoice, "/other", "y"), httpkey.ErrOneKey)
		keys := s.seen()
		require.Len(t, keys, 4)
		for i, key := range keys {
			assert.NotContains(t, keys[i+1:], key)
		}
		id, err := inbox.ID(ctx, "invoice")
		require.NoError(t, err)
		assert.Equal(t, id, keys[1])

		stream := func(r *http.Request) { r.GetBody = nil }
		streamed := inbox.WithStep(ctx, "streamed")
		require.NoError(t, post(streamed, "/send", "z", stream))
		require.ErrorIs(t, post(streamed, "/send", "z", stream), httpkey.ErrOneKey, "nobody knows whether they are alike")
	})
}

func TestWhatNeedsNoKeyGetsNone(t *testing.T) {
	s, transport := newServer(t), &httpkey.Transport{}
	set := func(r *http.Request) { r.Header.Set("Idempotency-Key", "mine") }
	within(t, "one", func(ctx context.Context) {
		require.NoError(t, do(t, ctx, transport, http.MethodGet, s.URL, ""))
		require.NoError(t, do(t, ctx, transport, http.MethodPost, s.URL, "x", set))
		require.NoError(t, do(t, ctx, transport, http.MethodPost, s.URL, "y", set))
		assert.Equal(t, []string{"", "mine", "mine"}, s.seen(), "what is set stays")

		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, nil)
		require.NoError(t, err)
		resp, err := transport.RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Empty(t, req.Header, "the request is the caller's")
		s.seen()

		require.NoError(t, do(t, ctx, &httpkey.Transport{Header: "Other-Key"}, http.MethodDelete, s.URL, ""))
		assert.NotEqual(t, []string{""}, s.seen())
	})
	require.NoError(t, do(t, t.Context(), transport, http.MethodPost, s.URL, "x"))
	assert.Equal(t, []string{""}, s.seen(), "there is no message")
	err := do(t, t.Context(), &httpkey.Transport{Required: true}, http.MethodPost, s.URL, "x")
	require.ErrorIs(t, err, inbox.ErrNoMessage)
	assert.Empty(t, s.seen())
	transport.CloseIdleConnections()
}

func TestARequestThatIsNoneIsAnError(t *testing.T) {
	for name, req := range map[string]http.Request{
		"no URL":     {Method: http.MethodPost, Header: http.Header{}},
		"no headers": {Method: http.MethodPost, URL: &url.URL{Scheme: "http", Host: "mail.example"}},
	} {
		within(t, "one", func(ctx context.Context) {
			_, err := (&httpkey.Transport{}).RoundTrip(req.WithContext(ctx)) //nolint:bodyclose // there is none
			require.ErrorContains(t, err, "nil Request", name)
		})
	}
}

func TestARedirectKeepsItsKey(t *testing.T) {
	s, transport := newServer(t), &httpkey.Transport{}
	within(t, "one", func(ctx context.Context) {
		moved := func(ctx context.Context) {
			require.NoError(t, do(t, ctx, transport, http.MethodPost, s.URL+"/moved", "x"))
			keys := s.seen()
			require.Len(t, keys, 2)
			assert.Equal(t, keys[0], keys[1])
		}
		moved(ctx)
		moved(inbox.WithStep(ctx, "step"))
	})
}
