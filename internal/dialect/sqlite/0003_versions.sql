-- Up to which version each aggregate was applied, by consumer.
CREATE TABLE millrace_versions (
  consumer      INTEGER NOT NULL,
  aggregate     BLOB    NOT NULL,
  version       INTEGER NOT NULL, -- applied last; the one before the first until then
  first_version INTEGER NOT NULL, -- applied first
  held_to       INTEGER NOT NULL DEFAULT 0, -- the greatest that ever waited for another
  token         INTEGER NOT NULL, -- of the attempt that applied the last
  message_id    BLOB    NOT NULL, -- of the message that was applied last
  payload_hash  INTEGER NOT NULL, -- of the message that was applied last
  PRIMARY KEY (consumer, aggregate)
) WITHOUT ROWID;
