// Package secret removes passwords from texts that people see.
package secret

import "regexp"

// Passwords in a connection string: in a URL, before another host, or after their name.
var (
	ofURLs      = regexp.MustCompile(`(://[^:/@\s]*:)\S+@`)
	credentials = regexp.MustCompile(`(\b[\w.-]+:)(\S+)(@[\w.\[\]-]*[:/(])`)
	passwords   = regexp.MustCompile(`(?i)(\b\w*password\s*=\s*)('[^']*'|[^\s&"']+)`)
)

// Concealed stands where a secret was.
const Concealed = "[hidden]"

// WithoutCredentials returns text without the passwords of the connection strings in it.
func WithoutCredentials(text string) string {
	text = ofURLs.ReplaceAllString(text, "${1}"+Concealed+"@")
	text = credentials.ReplaceAllString(text, "${1}"+Concealed+"${3}")
	return passwords.ReplaceAllString(text, "${1}"+Concealed)
}
