-- An operator's action on many messages has one entry for each consumer: detail says which messages it was to take, and
-- messages how many it has changed so far. bulk is what the entries of one action have in common. Both are NULL in
-- other entries.
ALTER TABLE millrace_audit ADD COLUMN bulk BIGINT;

ALTER TABLE millrace_audit ADD COLUMN messages BIGINT;

-- Serves CountBulk and SelectBulk.
CREATE UNIQUE INDEX ix_millrace_audit_bulk ON millrace_audit (bulk, consumer) WHERE bulk IS NOT NULL;

-- The messages that such actions changed.
CREATE TABLE millrace_audit_messages (
  entry      BIGINT NOT NULL, -- of millrace_audit
  number     BIGINT NOT NULL, -- counts the messages of the entry, from 1 on
  at         BIGINT NOT NULL,
  message_id BYTEA  NOT NULL,
  original   BYTEA, -- of a collision
  detail     BYTEA  NOT NULL,
  PRIMARY KEY (entry, number)
);

-- These serve StoryAudit.
CREATE INDEX ix_millrace_audit_messages_key ON millrace_audit_messages (message_id);

CREATE INDEX ix_millrace_audit_messages_original ON millrace_audit_messages (original) WHERE original IS NOT NULL;
