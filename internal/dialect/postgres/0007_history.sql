-- What went wrong with a message, or held it up: an entry for each failed attempt and each time that it was put
-- aside, the newest ten. Each lives as long as the claim.
CREATE TABLE millrace_history (
  at          BIGINT   NOT NULL,
  received_at BIGINT   NOT NULL, -- when the message was first stored
  consumer    INTEGER  NOT NULL,
  number      INTEGER  NOT NULL, -- counts what happened to the message from 1 on
  attempts    INTEGER  NOT NULL, -- by then
  slot        SMALLINT NOT NULL, -- the number modulo 10: the eleventh entry takes the place of the first
  status      SMALLINT NOT NULL, -- from then on
  failed      SMALLINT NOT NULL, -- 1: an attempt failed, 0: it was put aside without one
  message_id  BYTEA    NOT NULL,
  reason      BYTEA,
  error       BYTEA, -- of the last attempt
  PRIMARY KEY (consumer, message_id, slot)
);
