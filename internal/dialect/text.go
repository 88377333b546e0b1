package dialect

import (
	"fmt"
	"net/url"
	"strings"
)

// TextBytes returns how many bytes an argument has in the text of a statement, into which go-sql-driver writes it with
// interpolateParams: it escapes what MySQL would read otherwise.
func TextBytes[T ~[]byte | ~string](arg T) int {
	n := len(`_binary''`) + len(arg)
	for i := range len(arg) {
		switch arg[i] {
		case 0, '\n', '\r', '\x1a', '\'', '"', '\\':
			n++
		}
	}
	return n
}

// CheckCharset returns an error if dsn asks for a character set other than utf8mb4: in gbk, for one, the server reads a part
// of an argument that go-sql-driver has written into a statement as SQL. dsn is formatted by the driver's Config.
func CheckCharset(dsn string) error {
	_, params, _ := strings.Cut(dsn[strings.LastIndex(dsn, "/")+1:], "?")
	set := "?"
	if values, err := url.ParseQuery(params); err == nil {
		set, _, _ = strings.Cut(values.Get("charset"), ",") // each server knows utf8mb4, so the driver tries no other
	}
	if set == "" || set == "utf8mb4" {
		return nil
	}
	return fmt.Errorf("the connection string has charset=%s, in which the server can misread arguments: "+
		"remove it, or set charset=utf8mb4", set)
}
