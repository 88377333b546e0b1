package payload

import "context"

// Blobs keep large payloads outside the database; [FileBlobs] are one implementation. A name has 32
// lower-case letters and digits and is used once; later names sort after earlier ones. Blobs must be
// safe for concurrent use, reachable by every process that shares the tables, and used by these
// tables alone: the inbox deletes blobs that no row of them refers to. A panic counts as an error,
// except one of Put or Get in a delivery that no queue stores, which reaches the router.
type Blobs interface {
	// Put stores body. When it returns nil, a crash does not lose it. The inbox calls Put before it
	// commits the row that refers to the blob.
	Put(ctx context.Context, name string, body []byte) error

	// Get returns what Put was given. After an error the message is delivered later, as after one of
	// [Codec].Open.
	Get(ctx context.Context, name string) ([]byte, error)

	// Delete removes a blob, and what a Put that was cut off left behind. A blob that does not exist
	// is no error.
	Delete(ctx context.Context, name string) error

	// List returns the first names, at most limit, that sort after after and before before. An empty
	// after sorts before all names; before may be the beginning of a name.
	List(ctx context.Context, after, before string, limit int) ([]string, error)
}
