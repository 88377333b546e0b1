// Package secret removes passwords from texts that people see.
package secret

import "regexp"

// Passwords in a connection string: before a host, or after their name.
var (
	credentials = regexp.MustCompile(`(://[^:/@\s]*:|\b[\w.-]+:)(\S+)(@[\w.\[\]-]*[:/(])`)
	passwords   = regexp.MustCompile(`(?i)(\bpassword\s*=\s*)('[^']*'|[^\s&"']+)`)
)

// Concealed stands where a secret was.
const Concealed = "[hidden]"

// WithoutCredentials returns text without the passwords of the connection strings in it.
func WithoutCredentials(text string) string {
	text = credentials.ReplaceAllString(text, "${1}"+Concealed+"${3}")
	return passwords.ReplaceAllString(text, "${1}"+Concealed)
}
