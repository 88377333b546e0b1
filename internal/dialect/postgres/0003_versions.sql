-- Up to which version each aggregate was applied, by consumer.
CREATE TABLE millrace_versions (
  version       BIGINT  NOT NULL, -- applied last; the one before the first until then
  first_version BIGINT  NOT NULL, -- applied first
  held_to       BIGINT  NOT NULL DEFAULT 0, -- the greatest that ever waited for another
  token         BIGINT  NOT NULL, -- of the attempt that applied the last
  payload_hash  BIGINT  NOT NULL, -- of the message that was applied last
  consumer      INTEGER NOT NULL,
  aggregate     BYTEA   NOT NULL,
  message_id    BYTEA   NOT NULL, -- of the message that was applied last
  PRIMARY KEY (consumer, aggregate)
);
