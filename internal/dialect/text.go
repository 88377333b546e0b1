package dialect

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
