-- Failures and delays of a message: an entry for each failed attempt and each time that the message was held, parked
-- or put back, the newest ten. They are kept as long as the claim.
CREATE TABLE millrace_history (
  at          INTEGER NOT NULL,
  received_at INTEGER NOT NULL, -- when the message was first stored
  consumer    INTEGER NOT NULL,
  number      INTEGER NOT NULL, -- counts the entries of the message, from 1 on
  attempts    INTEGER NOT NULL, -- up to this entry
  slot        INTEGER NOT NULL, -- the number modulo 10: the eleventh entry replaces the first
  status      INTEGER NOT NULL, -- after this entry
  failed      INTEGER NOT NULL, -- 1: an attempt failed, 0: the message was held, parked or put back without one
  message_id  BLOB    NOT NULL,
  reason      BLOB,
  error       BLOB, -- of the last attempt
  PRIMARY KEY (consumer, message_id, slot)
) WITHOUT ROWID;
