package admin

import (
	"bytes"
	"context"
	"encoding/csv"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/millrace-go/millrace/internal/keycode"
)

const exportTime = "2006-01-02T15:04:05.000Z"

// ExportAudit writes the entries that f matches to w as CSV, the newest first, with a line of names before
// them. A field that begins with a sign by which a spreadsheet knows a formula has an apostrophe before it.
// Each Write has whole lines. After an error w has a part of the entries.
func (a *Admin) ExportAudit(ctx context.Context, f AuditFilter, w io.Writer) error {
	out := newSheet(w, "id", "at", "by", "action", "consumer", "epoch", "key", "messages", "reason", "detail")
	for before, more := int64(0), true; more; {
		page, err := a.SearchAudit(ctx, f, before, MaxPage, math.MaxInt)
		if err != nil {
			return err
		}
		for _, e := range page.Entries {
			epoch, messages := "", "1"
			if e.Consumer != "" {
				epoch = strconv.Itoa(e.Epoch)
			}
			switch {
			case e.Bulk != 0:
				messages = strconv.FormatInt(e.Messages, 10)
			case e.MessageID == "":
				messages = ""
			}
			out.line(strconv.FormatInt(e.ID, 10), e.At.Format(exportTime), e.Operator.Name, e.Action, e.Consumer, epoch,
				keycode.Text(e.MessageID), messages, e.Operator.Reason, e.Detail)
		}
		if err := out.flush(); err != nil {
			return err
		}
		before, more = page.Next, page.Next != 0
	}
	return nil
}

// ExportAuditMessages writes the messages of an entry to w, see [Admin.AuditMessages] and
// [Admin.ExportAudit].
func (a *Admin) ExportAuditMessages(ctx context.Context, entry int64, w io.Writer) error {
	out := newSheet(w, "entry", "number", "at", "key", "original", "detail")
	for after, more := int64(0), true; more; {
		page, err := a.AuditMessages(ctx, entry, after, MaxPage)
		if err != nil {
			return err
		}
		for _, m := range page {
			after = m.Number
			out.line(strconv.FormatInt(entry, 10), strconv.FormatInt(m.Number, 10), m.At.Format(exportTime),
				keycode.Text(m.MessageID), keycode.Text(m.Original), m.Detail)
		}
		if err := out.flush(); err != nil {
			return err
		}
		more = len(page) == MaxPage
	}
	return nil
}

// sheet writes CSV, whole lines at a time.
type sheet struct {
	csv   *csv.Writer
	lines *bytes.Buffer
	to    io.Writer
}

func newSheet(w io.Writer, names ...string) sheet {
	lines := &bytes.Buffer{}
	s := sheet{csv.NewWriter(lines), lines, w}
	s.line(names...)
	return s
}

// line adds a line, to a buffer that takes all.
func (s sheet) line(fields ...string) {
	for i, text := range fields {
		if text != "" && strings.ContainsRune("=+-@\t\r\n", rune(text[0])) {
			fields[i] = "'" + text
		}
	}
	_ = s.csv.Write(fields)
}

func (s sheet) flush() error {
	s.csv.Flush()
	_, err := s.lines.WriteTo(s.to)
	return err
}
