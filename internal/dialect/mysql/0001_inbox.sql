-- One row per consumer and epoch; every other table refers to its id.
-- by_name serves SelectConsumer.
CREATE TABLE IF NOT EXISTS millrace_consumers (
  id         INT            NOT NULL PRIMARY KEY,
  namespace  VARBINARY(255) NOT NULL,
  name       VARBINARY(255) NOT NULL,
  epoch      INT            NOT NULL,
  key_source BLOB           NOT NULL,
  retention  BIGINT         NOT NULL, -- microseconds after processing; 0 keeps for ever
  window_us  BIGINT         NOT NULL DEFAULT 0, -- longest redelivery window its users declared
  on_replay  SMALLINT NOT NULL DEFAULT 0, -- its inbox.ReplayRule
  purge_line BIGINT         NOT NULL DEFAULT 0, -- greatest processed_at that was deleted
  paused     BOOLEAN        NOT NULL DEFAULT FALSE,
  served_until BIGINT       NOT NULL DEFAULT 0, -- until when a queue is known to deliver what is stored
  purged_at  BIGINT         NOT NULL DEFAULT 0, -- when a janitor last saw to it that nothing is kept for too long
  created_at BIGINT         NOT NULL,
  UNIQUE KEY by_name (namespace, name, epoch)
) ENGINE = InnoDB;

-- The only arbiter of a key. result 0: open, the row in millrace_messages says what.
-- Anything else: completed.
CREATE TABLE IF NOT EXISTS millrace_claims (
  consumer     INT            NOT NULL,
  message_id   VARBINARY(128) NOT NULL,
  result       SMALLINT       NOT NULL,
  processed_at BIGINT         NOT NULL,
  payload_hash BIGINT         NOT NULL,
  token        BIGINT         NOT NULL,
  PRIMARY KEY (consumer, message_id)
) ENGINE = InnoDB;

-- Messages a handler returned, until the broker has them.
-- by_age serves SelectOutcomes.
CREATE TABLE IF NOT EXISTS millrace_outcomes (
  consumer   INT            NOT NULL,
  message_id VARBINARY(128) NOT NULL,
  created_at BIGINT         NOT NULL,
  topic      BLOB           NOT NULL,
  messages   LONGBLOB       NOT NULL,
  PRIMARY KEY (consumer, message_id),
  KEY by_age (created_at)
) ENGINE = InnoDB;

-- What a handler said with inbox.SetResult; lives as long as its claim.
CREATE TABLE IF NOT EXISTS millrace_results (
  consumer   INT            NOT NULL,
  message_id VARBINARY(128) NOT NULL,
  body       LONGBLOB       NOT NULL,
  PRIMARY KEY (consumer, message_id)
) ENGINE = InnoDB;

-- Every message that is open, whole.
-- by_key serves Lookup, TouchMessage and DeleteMessage: one open row per consumer and message.
-- by_status serves SearchStatus, CountStatus, CountLapsed, SelectOldest and GroupFailures, by_original serves StoryMessages.
-- by_group serves SearchGroup and GroupFailure.
-- by_aggregate serves ReleaseHeld, CountHeld and SelectWaiting.
-- by_due serves SelectDue, SelectExpired and CountDue, by_order serves SelectDue.
-- by_blob serves SelectReferred.
CREATE TABLE IF NOT EXISTS millrace_messages (
  id           BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
  consumer     INT            NOT NULL,
  message_id   VARBINARY(128) NOT NULL,
  status       SMALLINT       NOT NULL,
  attempts     INT            NOT NULL DEFAULT 0,
  topic        BLOB           NOT NULL,
  partition_no BIGINT,
  offset_no    BIGINT,
  order_key    VARBINARY(128),
  event_type   BLOB,
  event_version BLOB,
  uuid         BLOB           NOT NULL,
  metadata     LONGBLOB       NOT NULL,
  payload      LONGBLOB       NOT NULL,
  payload_hash BIGINT         NOT NULL,
  received_at  BIGINT         NOT NULL,
  due_at       BIGINT         NOT NULL, -- when to deliver it, to take it from whoever has it, or to park it
  lease_token  BIGINT         NOT NULL DEFAULT 0,
  last_error   BLOB,
  error_group  BIGINT, -- what errors of one shape have in common
  reason       BLOB,
  original     VARBINARY(128),
  aggregate    VARBINARY(128), -- of a message that was held: whose predecessor it waits for …
  version      BIGINT,         -- … and which version it is
  payload_form SMALLINT       NOT NULL DEFAULT 0, -- 1: sealed, 2: erased before it was stored
  payload_ref  VARBINARY(16),  -- of a payload that is kept elsewhere
  UNIQUE KEY by_key (consumer, message_id),
  KEY by_status (consumer, status, id),
  KEY by_group (consumer, error_group, id),
  KEY by_original (original),
  KEY by_aggregate (consumer, aggregate, version),
  KEY by_due (consumer, due_at),
  KEY by_order (consumer, order_key, id),
  KEY by_blob (payload_ref)
) ENGINE = InnoDB;

-- What operators did.
-- by_message serves StoryAudit, by_consumer serves ListAudit.
CREATE TABLE IF NOT EXISTS millrace_audit (
  id         BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
  at         BIGINT         NOT NULL,
  actor      BLOB           NOT NULL,
  action     BLOB           NOT NULL,
  reason     BLOB           NOT NULL,
  consumer   INT            NOT NULL,
  message_id VARBINARY(128) NOT NULL,
  detail     BLOB           NOT NULL,
  KEY by_message (message_id),
  KEY by_consumer (consumer, id)
) ENGINE = InnoDB;

-- Copies that were acked without running the handler; filled on request.
-- by_message serves StoryDropped; by_age serves PurgeDropped.
CREATE TABLE IF NOT EXISTS millrace_dropped (
  id         BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
  at         BIGINT         NOT NULL,
  consumer   INT            NOT NULL,
  message_id VARBINARY(128) NOT NULL,
  topic      BLOB           NOT NULL,
  reason     BLOB           NOT NULL,
  KEY by_message (message_id),
  KEY by_age (at)
) ENGINE = InnoDB;

-- Claims of middleware.Deduplicate: leases on a key, never mixed up with the inbox's.
-- by_until serves PurgeLeases.
CREATE TABLE IF NOT EXISTS millrace_leases (
  consumer   INT            NOT NULL,
  message_id VARBINARY(128) NOT NULL,
  token      BIGINT         NOT NULL, -- 0: confirmed
  until      BIGINT         NOT NULL, -- end of the lease, or of the time the key is remembered
  PRIMARY KEY (consumer, message_id),
  KEY by_until (until)
) ENGINE = InnoDB;

-- Payloads that are kept outside the rows of their messages. The name begins with the time at
-- which it was made. Serves InsertBlob, SelectBlob and SelectNames.
CREATE TABLE IF NOT EXISTS millrace_blobs (
  name VARBINARY(16) NOT NULL PRIMARY KEY,
  body LONGBLOB      -- NULL: it is in the BlobStore
) ENGINE = InnoDB;

-- What each consumer did in each minute, over all processes. The key begins with the minute:
-- it serves AddActivity, SelectActivity and PurgeActivity.
CREATE TABLE IF NOT EXISTS millrace_activity (
  minute      BIGINT NOT NULL, -- its beginning
  consumer    INT    NOT NULL,
  completed   BIGINT NOT NULL,
  failed      BIGINT NOT NULL,
  duplicates  BIGINT NOT NULL,
  stale       BIGINT NOT NULL,
  held        BIGINT NOT NULL,
  parked      BIGINT NOT NULL,
  handling_us BIGINT NOT NULL, -- of handlers that ran
  PRIMARY KEY (minute, consumer)
) ENGINE = InnoDB;
