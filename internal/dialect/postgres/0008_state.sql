-- Together with status, these columns decide how a message goes on; reason and last_error are for people only.
-- reason_code 1: the message is parked because it was replayed. error_code 1: its last attempt lost the connection to
-- the database. allowed 1: an operator wants it handled although it was replayed.
ALTER TABLE millrace_messages ADD COLUMN reason_code SMALLINT NOT NULL DEFAULT 0;

ALTER TABLE millrace_messages ADD COLUMN error_code SMALLINT NOT NULL DEFAULT 0;

ALTER TABLE millrace_messages ADD COLUMN allowed SMALLINT NOT NULL DEFAULT 0;

-- Earlier releases wrote this as text only.
UPDATE millrace_messages
  SET reason_code = 1
  WHERE status = 6 AND reason_code = 0 AND SUBSTRING(reason FROM 1 FOR 12) = 'replayed by '::BYTEA;

UPDATE millrace_messages
  SET allowed = 1
  WHERE allowed = 0 AND EXISTS (
    SELECT 1 FROM millrace_audit a
    WHERE a.message_id = millrace_messages.message_id AND a.consumer = millrace_messages.consumer
      AND a.action = 'retry'::BYTEA AND a.at >= millrace_messages.received_at);
