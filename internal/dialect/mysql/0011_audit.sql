-- An operator's action on many messages has one entry for each consumer: detail says which messages it was to take, and
-- messages how many it has changed so far. bulk is what the entries of one action have in common. Both are NULL in
-- other entries. by_bulk serves CountBulk and SelectBulk.
ALTER TABLE millrace_audit ADD COLUMN bulk BIGINT;

ALTER TABLE millrace_audit ADD COLUMN messages BIGINT;

ALTER TABLE millrace_audit ADD UNIQUE KEY by_bulk (bulk, consumer);

-- The messages that such actions changed. by_message and by_original serve StoryAudit.
CREATE TABLE IF NOT EXISTS millrace_audit_messages (
  entry      BIGINT         NOT NULL, -- of millrace_audit
  number     BIGINT         NOT NULL, -- counts the messages of the entry, from 1 on
  at         BIGINT         NOT NULL,
  message_id VARBINARY(128) NOT NULL,
  original   VARBINARY(128), -- of a collision
  detail     BLOB           NOT NULL,
  PRIMARY KEY (entry, number),
  KEY by_message (message_id),
  KEY by_original (original)
) ENGINE = InnoDB;
