package database

import (
	"context"
	"strconv"
	"time"

	"github.com/millrace-go/millrace/internal/dialect"
)

// leastPacket is smaller than any packet that a server is likely to be given.
const leastPacket = 1 << 19

// BeyondPacket reports whether a statement with so many bytes is larger than the server's packet:
// MySQL then cuts the connection, and may not get to say why.
func (db *DB) BeyondPacket(ctx context.Context, bytes int) bool {
	if db.Dialect.Name != dialect.MySQLName || bytes < leastPacket {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	settings, err := db.Dialect.Settings(ctx, db)
	if err != nil {
		return false // the server really is out of reach
	}
	most, err := strconv.Atoi(settings["max_allowed_packet"])
	return err == nil && bytes >= most-most/16 // a statement is larger than its arguments
}
