package dashboard

import (
	"io"
	"net/http"
	"time"
)

// file returns what writes a file in CSV.
type file func(*visit) (write func(to io.Writer) error, err error)

// filePatience limits how long a file may take.
const filePatience = 5 * time.Minute

// download answers with a file. If it fails in the middle it breaks the connection, so that nobody takes a
// part for the whole.
func (h *Handler) download(w http.ResponseWriter, v *visit, f file) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(filePatience)) // the server's may be for pages
	write, err := f(v)
	to := &attachment{w: w, name: v.path}
	switch {
	case err != nil:
	case v.r.Method == http.MethodHead:
		to.begin()
		return
	default:
		err = write(to)
	}
	if err != nil && to.begun {
		h.config.Logger.Error("dashboard: a file was cut off", err, nil)
		panic(http.ErrAbortHandler)
	}
	if err != nil {
		h.fail(w, v, err)
	}
}

// attachment says what the answer is when the first bytes are there, since before that an error page may be
// the answer.
type attachment struct {
	w     http.ResponseWriter
	name  string
	begun bool
}

func (a *attachment) begin() {
	a.begun = true
	a.w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	a.w.Header().Set("Content-Disposition", `attachment; filename="`+a.name+`"`)
}

func (a *attachment) Write(p []byte) (int, error) {
	if !a.begun {
		a.begin()
	}
	return a.w.Write(p)
}
