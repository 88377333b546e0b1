// Package payload keeps stored payloads secret or outside the database.
//
// A [Codec] changes payloads on their way into the tables and back; inbox.Config.Payloads takes one.
// [AESGCM] encrypts, with keys from a [KeyRing] or with one key for each person.
//
//	codec, err := payload.NewAESGCM(payload.KeyRing{Current: "2026", Keys: keys})
//	store, err := inbox.NewStore(db, inbox.Config{Payloads: codec})
//
// [Blobs] keep large payloads outside the database; inbox.Config.Blobs takes them. [FileBlobs] are
// files in a directory.
//
//	blobs, err := payload.NewFileBlobs("/var/lib/billing")
//	store, err := inbox.NewStore(db, inbox.Config{Blobs: blobs, BlobsAbove: 100_000})
//
// A Codec, [Keys] or Blobs of your own tell the inbox by an error what happens to the message:
// inbox.ErrErased and inbox.Terminal give it up, any other error has it delivered later.
package payload
