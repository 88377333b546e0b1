-- Failures and delays of a message: an entry for each failed attempt and each time that the message was held, parked
-- or put back, the newest ten. They are kept as long as the claim.
CREATE TABLE IF NOT EXISTS millrace_history (
  at          BIGINT         NOT NULL,
  received_at BIGINT         NOT NULL, -- when the message was first stored
  consumer    INT            NOT NULL,
  number      INT            NOT NULL, -- counts the entries of the message, from 1 on
  attempts    INT            NOT NULL, -- up to this entry
  slot        SMALLINT       NOT NULL, -- the number modulo 10: the eleventh entry replaces the first
  status      SMALLINT       NOT NULL, -- after this entry
  failed      SMALLINT       NOT NULL, -- 1: an attempt failed, 0: the message was held, parked or put back without one
  message_id  VARBINARY(128) NOT NULL,
  reason      BLOB,
  error       BLOB, -- of the last attempt
  PRIMARY KEY (consumer, message_id, slot)
) ENGINE = InnoDB;
