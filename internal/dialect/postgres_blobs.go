package dialect

var postgresBlobs = Blobs{
	InsertBlob: `
		INSERT INTO millrace_blobs (name, body)
		VALUES ($1, $2)
		ON CONFLICT (name) DO NOTHING`,
	SelectBlob: `
		SELECT body
		FROM millrace_blobs
		WHERE name = $1`,
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
		WHERE name > $1 AND name < $2
		ORDER BY name
		LIMIT $3`,
	DeleteBlob: `
		DELETE FROM millrace_blobs
		WHERE name = $1`,
}
