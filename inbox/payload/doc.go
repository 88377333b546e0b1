// Package payload keeps stored payloads secret or outside the database: [AESGCM] encrypts them,
// for inbox.Config.Payloads, and [FileBlobs] keeps large ones in files, for inbox.Config.Blobs.
package payload
