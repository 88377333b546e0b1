package dashboard

import (
	"net/http"
	"strings"
)

// Limits of a request.
const (
	maxAddress = 8 << 10
	maxBody    = 64 << 10
	maxReason  = 500
)

// policy allows a page to load the embedded files and to send forms to its own site, nothing else.
var policy = strings.Join([]string{
	"default-src 'none'", "style-src 'self'", "script-src 'self'", "connect-src 'self'", "img-src 'self'",
	"form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'",
}, "; ")

// protect sets the headers of every answer. The referrer policy keeps the Origin of forms, which
// http.CrossOriginProtection compares.
func protect(header http.Header) {
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "same-origin")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
}
