-- An operator's action on many messages has one entry for each consumer: detail says which messages it was to take, and
-- messages how many it has changed so far. bulk is what the entries of one action have in common. Both are NULL in
-- other entries.
ALTER TABLE millrace_audit ADD COLUMN bulk INTEGER;

ALTER TABLE millrace_audit ADD COLUMN messages INTEGER;

-- Serves CountBulk and SelectBulk.
CREATE UNIQUE INDEX ix_millrace_audit_bulk ON millrace_audit (bulk, consumer) WHERE bulk IS NOT NULL;

-- The messages that such actions changed.
CREATE TABLE millrace_audit_messages (
  entry      INTEGER NOT NULL, -- of millrace_audit
  number     INTEGER NOT NULL, -- counts the messages of the entry, from 1 on
  at         INTEGER NOT NULL,
  message_id BLOB    NOT NULL,
  original   BLOB, -- of a collision
  detail     BLOB    NOT NULL,
  PRIMARY KEY (entry, number)
) WITHOUT ROWID;

-- These serve StoryAudit.
CREATE INDEX ix_millrace_audit_messages_key ON millrace_audit_messages (message_id);

CREATE INDEX ix_millrace_audit_messages_original ON millrace_audit_messages (original) WHERE original IS NOT NULL;
