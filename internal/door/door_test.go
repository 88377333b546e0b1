package door_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/door"
)

const token = "0123456789abcdef"

func TestATokenIsNeededWhereOthersCanReach(t *testing.T) {
	for _, c := range []struct{ address, token, name, problem string }{
		{"127.0.0.1:80", "", "ada", ""},
		{"localhost:80", "", "ada", ""},
		{"[::1]:80", "", "ada", ""},
		{"127.0.0.1:80", "", "", "who acts"},
		{"0.0.0.0:80", "", "ada", "other machines"},
		{":80", "", "ada", "other machines"},
		{"10.0.0.1:80", "", "ada", "other machines"},
		{"localhost.evil.example:80", "", "ada", "other machines"},
		{":80", "short", "", "guessed"},
		{":80", token, "", ""},
		{"127.0.0.1", "", "ada", "missing port"},
	} {
		_, err := door.New(c.address, c.token, c.name)
		if c.problem == "" {
			require.NoError(t, err, c.address)
			continue
		}
		require.ErrorContains(t, err, c.problem, c.address)
	}
}

// inside answers with the name of who came in.
func inside(d *door.Door) http.Handler {
	return d.Guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, "hello "+d.Operator(r)) }))
}

func ask(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestAnotherNameForThisMachineIsRefused: a site that has its name lead here gets nothing.
func TestAnotherNameForThisMachineIsRefused(t *testing.T) {
	d, err := door.New("127.0.0.1:80", "", "ada")
	require.NoError(t, err)
	for host, status := range map[string]int{
		"127.0.0.1:80": 200, "localhost:80": 200, "[::1]:80": 200, "localhost": 200,
		"evil.example": 421, "evil.example:80": 421, "127.0.0.1.evil.example": 421, "": 421,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = host
		assert.Equal(t, status, ask(inside(d), r).Code, host)
	}
}

func login(name, token, site string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/sign-in", strings.NewReader(url.Values{"name": {name}, "token": {token}}.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", site)
	return r
}

func TestWhoKnowsTheTokenComesIn(t *testing.T) {
	d, err := door.New(":80", token, "")
	require.NoError(t, err)
	h := inside(d)
	stranger := ask(h, httptest.NewRequest(http.MethodGet, "/inbox", nil))
	assert.Equal(t, http.StatusUnauthorized, stranger.Code)
	assert.NotContains(t, stranger.Body.String(), "hello")

	for _, wrong := range []*http.Request{
		login("ada", "another-token-than-that", "same-origin"), login("ada", "", "same-origin"), login("", token, "same-origin"),
		login(strings.Repeat("x", 101), token, "same-origin"), login("ada", token, "cross-site"),
	} {
		w := ask(h, wrong)
		assert.GreaterOrEqual(t, w.Code, 400)
		assert.Empty(t, w.Result().Cookies())
	}

	w := ask(h, login("ada", token, "same-origin"))
	require.Equal(t, http.StatusSeeOther, w.Code)
	cookies := w.Result().Cookies()
	require.Len(t, cookies, 1)
	assert.True(t, cookies[0].HttpOnly)
	assert.Equal(t, http.SameSiteStrictMode, cookies[0].SameSite)
	assert.NotContains(t, cookies[0].Value, token)
	known := httptest.NewRequest(http.MethodGet, "/inbox", nil)
	known.AddCookie(cookies[0])
	assert.Equal(t, "hello ada", ask(h, known).Body.String())

	other, err := door.New(":80", token, "")
	require.NoError(t, err)
	assert.Equal(t, http.StatusUnauthorized, ask(inside(other), known).Code, "another process")
	name, signature, _ := strings.Cut(cookies[0].Value, ".")
	for _, forged := range []string{"", name, name + ".", "Z3JhY2U." + signature, name + "." + signature[1:]} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.AddCookie(&http.Cookie{Name: cookies[0].Name, Value: forged})
		assert.Equal(t, http.StatusUnauthorized, ask(h, r).Code, forged)
	}
}

// TestTwoDoorsOfOneHost: a browser sends the cookies of a host to all of its ports.
func TestTwoDoorsOfOneHost(t *testing.T) {
	cookies, doors := map[string]*http.Cookie{}, map[string]http.Handler{}
	for _, address := range []string{":8642", ":8643"} {
		d, err := door.New(address, token, "")
		require.NoError(t, err)
		doors[address] = inside(d)
		for _, c := range ask(doors[address], login("ada", token, "same-origin")).Result().Cookies() {
			cookies[c.Name] = c
		}
	}
	known := httptest.NewRequest(http.MethodGet, "/", nil)
	for _, c := range cookies {
		known.AddCookie(c)
	}
	for address, h := range doors {
		assert.Equal(t, "hello ada", ask(h, known).Body.String(), address)
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	d, err := door.New("127.0.0.1:0", "", "ada")
	require.NoError(t, err)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Serve(ctx, listener, http.NotFoundHandler()) }()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String(), nil)
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	assert.Equal(t, http.StatusNotFound, answer.StatusCode)
	cancel()
	require.NoError(t, <-ended)
}
