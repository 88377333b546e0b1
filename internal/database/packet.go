package database

import (
	"context"
	"strconv"
	"time"

	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/owned"
)

// leastPacket is smaller than any packet that a server is likely to be given.
const leastPacket = 1 << 19

// BeyondPacket reports whether a statement with these arguments is larger than the server's packet:
// MySQL then cuts the connection, and may not get to say why. The statement has other, small arguments.
func (db *DB) BeyondPacket(ctx context.Context, args ...[]byte) bool {
	if db.Dialect.Name != dialect.MySQLName {
		return false
	}
	bytes, text := 0, 0
	for _, arg := range args {
		bytes, text = bytes+len(arg), text+dialect.TextBytes(arg)
	}
	if text < leastPacket {
		return false
	}
	most := int(db.packet.Load())
	unsure := most == 0 || bytes < most-most/16 && text >= most-most/16 // the driver may put arguments into the text
	if unsure || !owned.UsedUp(db.DB.DB) {                              // else the transaction may have the only connection
		var interpolates bool
		if most, interpolates = db.askPacket(ctx, text); interpolates {
			bytes = text
		}
	}
	return most > 0 && bytes >= most-most/16 // a statement is larger than its arguments
}

// askPacket asks the server for its packet, which is 0 if it does not answer, and reports whether the driver puts the
// arguments of a statement, which have so many bytes as text, into its text.
func (db *DB) askPacket(ctx context.Context, text int) (most int, interpolates bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	conn, err := db.Connx(ctx)
	if err != nil {
		return 0, false // the server really is out of reach
	}
	defer conn.Close()               //nolint:errcheck // goes back to the pool
	_ = conn.Raw(func(c any) error { // if it fails, so does the query
		interpolates = text <= owned.MostText(c)
		return nil
	})
	settings, err := db.Dialect.Settings(ctx, conn)
	if err != nil {
		return 0, false
	}
	if most, err = strconv.Atoi(settings[maxPacket]); err != nil {
		return 0, false
	}
	db.NotePacket(int64(most))
	return most, interpolates
}

const maxPacket = "max_allowed_packet"

// NotePacket remembers the server's packet for when no connection is free to ask for it.
func (db *DB) NotePacket(bytes int64) { db.packet.Store(bytes) }
