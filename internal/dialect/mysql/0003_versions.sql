-- Up to which version each aggregate was applied, by consumer.
CREATE TABLE IF NOT EXISTS millrace_versions (
  consumer      INT            NOT NULL,
  aggregate     VARBINARY(128) NOT NULL,
  version       BIGINT         NOT NULL, -- applied last; the one before the first until then
  first_version BIGINT         NOT NULL, -- applied first
  held_to       BIGINT         NOT NULL DEFAULT 0, -- the greatest that ever waited for another
  token         BIGINT         NOT NULL, -- of the attempt that applied the last
  message_id    VARBINARY(128) NOT NULL, -- of the message that was applied last
  payload_hash  BIGINT         NOT NULL, -- of the message that was applied last
  PRIMARY KEY (consumer, aggregate)
) ENGINE = InnoDB;
