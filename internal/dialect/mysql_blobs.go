package dialect

var mysqlBlobs = Blobs{
	InsertBlob: `
		INSERT INTO millrace_blobs (name, body)
		VALUES (?, ?)
		ON DUPLICATE KEY UPDATE name = name`,
	SelectBlob: `
		SELECT body
		FROM millrace_blobs
		WHERE name = ?`,
	SelectReferred: `
		SELECT payload_ref
		FROM millrace_messages
		WHERE payload_ref IN (?)
		UNION
		SELECT payload_ref
		FROM millrace_journal
		WHERE payload_ref IN (?)`,
	SelectNames: `
		SELECT name
		FROM millrace_blobs
		WHERE name > ? AND name < ?
		ORDER BY name
		LIMIT ?`,
	DeleteBlob: `
		DELETE FROM millrace_blobs
		WHERE name = ?`,
}
