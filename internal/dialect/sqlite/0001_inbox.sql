-- One row per consumer and epoch; every other table refers to its id.
CREATE TABLE millrace_consumers (
  id         INTEGER NOT NULL PRIMARY KEY,
  namespace  BLOB NOT NULL,
  name       BLOB NOT NULL,
  epoch      INTEGER NOT NULL,
  key_source BLOB NOT NULL,
  retention  INTEGER NOT NULL, -- microseconds after processing; 0 keeps for ever
  window_us  INTEGER NOT NULL DEFAULT 0, -- longest redelivery window its users declared
  on_replay  INTEGER NOT NULL DEFAULT 0, -- its inbox.ReplayRule
  purge_line INTEGER NOT NULL DEFAULT 0, -- greatest processed_at that was deleted
  paused     INTEGER NOT NULL DEFAULT 0,
  served_until INTEGER NOT NULL DEFAULT 0, -- until when a queue is known to deliver what is stored
  purged_at  INTEGER NOT NULL DEFAULT 0, -- when a janitor last saw to it that nothing is kept for too long
  created_at INTEGER NOT NULL
);

-- Serves SelectConsumer.
CREATE UNIQUE INDEX ix_millrace_consumers_name ON millrace_consumers (namespace, name, epoch);

-- The only arbiter of a key. result 0: open, the row in millrace_messages says what.
-- Anything else: completed.
CREATE TABLE millrace_claims (
  processed_at INTEGER NOT NULL,
  payload_hash INTEGER NOT NULL,
  token        INTEGER NOT NULL,
  consumer     INTEGER NOT NULL,
  result       INTEGER NOT NULL,
  message_id   BLOB    NOT NULL,
  PRIMARY KEY (consumer, message_id)
) WITHOUT ROWID;

-- Messages a handler returned, until the broker has them.
CREATE TABLE millrace_outcomes (
  consumer   INTEGER NOT NULL,
  message_id BLOB NOT NULL,
  created_at INTEGER NOT NULL,
  topic      BLOB NOT NULL,
  messages   BLOB NOT NULL,
  PRIMARY KEY (consumer, message_id)
);

-- Serves SelectOutcomes.
CREATE INDEX ix_millrace_outcomes_age ON millrace_outcomes (created_at);

-- What a handler said with inbox.SetResult; lives as long as its claim.
CREATE TABLE millrace_results (
  consumer   INTEGER NOT NULL,
  message_id BLOB NOT NULL,
  body       BLOB NOT NULL,
  PRIMARY KEY (consumer, message_id)
);

-- Every message that is open, whole.
CREATE TABLE millrace_messages (
  id           INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  consumer     INTEGER NOT NULL,
  message_id   BLOB    NOT NULL,
  status       INTEGER NOT NULL,
  attempts     INTEGER NOT NULL DEFAULT 0,
  topic        BLOB    NOT NULL,
  partition_no INTEGER,
  offset_no    INTEGER,
  order_key    BLOB,
  event_type   BLOB,
  event_version BLOB,
  uuid         BLOB    NOT NULL,
  metadata     BLOB    NOT NULL,
  payload      BLOB    NOT NULL,
  payload_hash INTEGER NOT NULL,
  received_at  INTEGER NOT NULL,
  due_at       INTEGER NOT NULL, -- when to deliver it, to take it from whoever has it, or to park it
  lease_token  INTEGER NOT NULL DEFAULT 0,
  last_error   BLOB,
  error_group  INTEGER, -- what errors of one shape have in common
  reason       BLOB,
  original     BLOB,
  aggregate    BLOB, -- of a message that was held: whose predecessor it waits for …
  version      INTEGER, -- … and which version it is
  payload_form INTEGER NOT NULL DEFAULT 0, -- 1: sealed, 2: erased before it was stored
  payload_ref  BLOB -- of a payload that is kept elsewhere
);

-- Serves Lookup, TouchMessage and DeleteMessage: one open row per consumer and message.
CREATE UNIQUE INDEX ix_millrace_messages_key ON millrace_messages (consumer, message_id);

-- Serves SearchStatus, CountStatus, CountLapsed, SelectOldest and GroupFailures.
CREATE INDEX ix_millrace_messages_status ON millrace_messages (consumer, status, id);

-- Serves SearchGroup and GroupFailure. Most messages never fail, and do not enter it.
CREATE INDEX ix_millrace_messages_group ON millrace_messages (consumer, error_group, id) WHERE error_group IS NOT NULL;

-- Serves StoryMessages: a parked collision is found by the message it collided with.
CREATE INDEX ix_millrace_messages_original ON millrace_messages (original);

-- Serves ReleaseHeld, CountHeld and SelectWaiting.
CREATE INDEX ix_millrace_messages_held ON millrace_messages (consumer, aggregate, version) WHERE status = 7;

-- Serves SelectDue, SelectExpired and CountDue.
CREATE INDEX ix_millrace_messages_due ON millrace_messages (consumer, due_at);

-- Serves SelectDue: what stands before a message of its order key.
CREATE INDEX ix_millrace_messages_order ON millrace_messages (consumer, order_key, id) WHERE order_key IS NOT NULL;

-- Serves SelectReferred.
CREATE INDEX ix_millrace_messages_blob ON millrace_messages (payload_ref) WHERE payload_ref IS NOT NULL;

-- What operators did.
CREATE TABLE millrace_audit (
  id         INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  at         INTEGER NOT NULL,
  actor      BLOB NOT NULL,
  action     BLOB NOT NULL,
  reason     BLOB NOT NULL,
  consumer   INTEGER NOT NULL,
  message_id BLOB NOT NULL,
  detail     BLOB NOT NULL
);

-- Serves StoryAudit.
CREATE INDEX ix_millrace_audit_message ON millrace_audit (message_id);

-- Serves ListAudit.
CREATE INDEX ix_millrace_audit_consumer ON millrace_audit (consumer, id);

-- Copies that were acked without running the handler; filled on request.
CREATE TABLE millrace_dropped (
  id         INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  at         INTEGER NOT NULL,
  consumer   INTEGER NOT NULL,
  message_id BLOB NOT NULL,
  topic      BLOB NOT NULL,
  reason     BLOB NOT NULL
);

-- Serves StoryDropped.
CREATE INDEX ix_millrace_dropped_message ON millrace_dropped (message_id);

-- Serves PurgeDropped.
CREATE INDEX ix_millrace_dropped_age ON millrace_dropped (at);

-- Claims of middleware.Deduplicate: leases on a key, never mixed up with the inbox's.
CREATE TABLE millrace_leases (
  consumer   INTEGER NOT NULL,
  message_id BLOB NOT NULL,
  token      INTEGER NOT NULL, -- 0: confirmed
  until      INTEGER NOT NULL, -- end of the lease, or of the time the key is remembered
  PRIMARY KEY (consumer, message_id)
) WITHOUT ROWID;

-- Serves PurgeLeases.
CREATE INDEX ix_millrace_leases_until ON millrace_leases (until);

-- Payloads that are kept outside the rows of their messages. The name begins with the time at
-- which it was made. Serves InsertBlob, SelectBlob and SelectNames.
CREATE TABLE millrace_blobs (
  name BLOB NOT NULL PRIMARY KEY,
  body BLOB -- NULL: it is in the BlobStore
);

-- What each consumer did in each minute, over all processes. The key begins with the minute:
-- it serves AddActivity, SelectActivity and PurgeActivity.
CREATE TABLE millrace_activity (
  minute      INTEGER NOT NULL, -- its beginning
  consumer    INTEGER NOT NULL,
  completed   INTEGER NOT NULL,
  failed      INTEGER NOT NULL,
  duplicates  INTEGER NOT NULL,
  stale       INTEGER NOT NULL,
  held        INTEGER NOT NULL,
  parked      INTEGER NOT NULL,
  handling_us INTEGER NOT NULL, -- of handlers that ran
  PRIMARY KEY (minute, consumer)
) WITHOUT ROWID;
