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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	conn, err := db.Connx(ctx)
	if err != nil {
		return false // the server really is out of reach
	}
	defer conn.Close()               //nolint:errcheck // goes back to the pool
	_ = conn.Raw(func(c any) error { // if it fails, so does the query
		if most := owned.MostText(c); text <= most {
			bytes = text
		}
		return nil
	})
	settings, err := db.Dialect.Settings(ctx, conn)
	if err != nil {
		return false
	}
	most, err := strconv.Atoi(settings["max_allowed_packet"])
	return err == nil && bytes >= most-most/16 // a statement is larger than its arguments
}
