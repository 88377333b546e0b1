package dashboard

import (
	"net/http"
	"strings"
)

// Limits of what a request may bring.
const (
	maxAddress = 8 << 10
	maxBody    = 64 << 10
	maxReason  = 500
)

// policy lets a page load the embedded files and send its forms to its own site, no more.
var policy = strings.Join([]string{
	"default-src 'none'", "style-src 'self'", "script-src 'self'", "connect-src 'self'", "img-src 'self'",
	"form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'",
}, "; ")

// protect sets what holds for every answer. The policy for referrers keeps the Origin of
// forms, which http.CrossOriginProtection compares.
func protect(header http.Header) {
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "same-origin")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
}
