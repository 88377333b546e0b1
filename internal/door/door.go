// Package door admits people to a web page that a command serves: users of this machine, or those
// who know a token.
package door

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"net"
	"net/http"
	"strings"
	"time"
)

// minToken is the least length of a token: 16 random letters cannot be guessed.
const minToken = 16

// Door admits requests. It is safe for concurrent use.
type Door struct {
	token  string
	name   string // of the user of this machine
	cookie string // its name; a browser sends the cookies of a host to all of its ports
	key    [32]byte
	cross  *http.CrossOriginProtection
}

// New returns a Door for the address of a listener. If only this machine can reach the address, no
// token is needed, and every request counts as name's. Otherwise people sign in with the token and
// a name of their own.
func New(address, token, name string) (*Door, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("listen at %q: %w", address, err)
	}
	if token == "" && !loopback(host) {
		return nil, fmt.Errorf("%q can be reached from other machines: give a token, or listen at 127.0.0.1", address)
	}
	if token != "" && len(token) < minToken {
		return nil, fmt.Errorf("the token has %d characters, which can be guessed: give at least %d", len(token), minToken)
	}
	if token == "" && name == "" {
		return nil, errors.New("who acts? give a name, for the audit log")
	}
	d := &Door{token: token, name: name, cookie: "millrace_" + port, cross: http.NewCrossOriginProtection()}
	_, err = rand.Read(d.key[:])
	return d, err
}

func loopback(host string) bool {
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Operator returns the name of the person who sent r.
func (d *Door) Operator(r *http.Request) string {
	if d.token == "" {
		return d.name
	}
	cookie, err := r.Cookie(d.cookie)
	if err != nil {
		return ""
	}
	name, signature, _ := strings.Cut(cookie.Value, ".")
	text, err := base64.RawURLEncoding.DecodeString(name)
	if err != nil || !hmac.Equal([]byte(signature), []byte(d.sign(text))) {
		return ""
	}
	return string(text)
}

// sign returns a signature of name that only this Door can make.
func (d *Door) sign(name []byte) string {
	mac := hmac.New(sha256.New, d.key[:])
	_, _ = mac.Write(name) // cannot fail
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

const (
	signIn  = "/sign-in"
	maxName = 100
	session = 12 * time.Hour
)

// Guard returns a handler that passes admitted requests to next.
func (d *Door) Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case d.token == "" && !ownHost(r.Host):
			// Another site may resolve its name to this machine; the Host header then has that
			// name.
			http.Error(w, "Open this page as localhost or 127.0.0.1.", http.StatusMisdirectedRequest)
		case d.Operator(r) != "":
			next.ServeHTTP(w, r)
		case r.URL.Path == signIn && r.Method == http.MethodPost:
			d.admit(w, r)
		default:
			d.ask(w, http.StatusUnauthorized, "")
		}
	})
}

func ownHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return loopback(host)
}

// admit checks the token and gives the browser a signed cookie.
func (d *Door) admit(w http.ResponseWriter, r *http.Request) {
	if d.cross.Check(r) != nil {
		d.ask(w, http.StatusForbidden, "This came from another site.")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 4<<10)
	name := strings.TrimSpace(r.PostFormValue("name"))
	given, want := sha256.Sum256([]byte(r.PostFormValue("token"))), sha256.Sum256([]byte(d.token))
	switch {
	case subtle.ConstantTimeCompare(given[:], want[:]) == 0:
		d.ask(w, http.StatusUnauthorized, "That is not the token.")
	case name == "" || len(name) > maxName:
		d.ask(w, http.StatusUnprocessableEntity, "Give your name: it goes into the audit log with what you do.")
	default:
		http.SetCookie(w, &http.Cookie{
			Name: d.cookie, Value: base64.RawURLEncoding.EncodeToString([]byte(name)) + "." + d.sign([]byte(name)),
			Path: "/", MaxAge: int(session.Seconds()), HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil,
		})
		http.Redirect(w, r, "/", http.StatusSeeOther)
	}
}

//go:embed sign-in.html
var source string

var page = template.Must(template.New("sign-in").Parse(source))

func (d *Door) ask(w http.ResponseWriter, status int, why string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	w.Header().Set("Referrer-Policy", "same-origin")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = page.Execute(w, struct{ Action, Why string }{signIn, why}) // the client may be gone
}
