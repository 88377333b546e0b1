-- What went wrong with a message, or held it up: an entry for each failed attempt and each time that it was put
-- aside, the newest ten. Each lives as long as the claim.
CREATE TABLE millrace_history (
  at          INTEGER NOT NULL,
  received_at INTEGER NOT NULL, -- when the message was first stored
  consumer    INTEGER NOT NULL,
  number      INTEGER NOT NULL, -- counts what happened to the message from 1 on
  attempts    INTEGER NOT NULL, -- by then
  slot        INTEGER NOT NULL, -- the number modulo 10: the eleventh entry takes the place of the first
  status      INTEGER NOT NULL, -- from then on
  failed      INTEGER NOT NULL, -- 1: an attempt failed, 0: it was put aside without one
  message_id  BLOB    NOT NULL,
  reason      BLOB,
  error       BLOB, -- of the last attempt
  PRIMARY KEY (consumer, message_id, slot)
) WITHOUT ROWID;
