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

-- Of the attempt that failed: the process, how long the handler ran, and its trace, if they are known. They are of the entry
-- with the number run_of: a process of the release before replaces an entry, and leaves them.
ALTER TABLE millrace_history ADD COLUMN run_of INTEGER;

ALTER TABLE millrace_history ADD COLUMN process BYTEA;

ALTER TABLE millrace_history ADD COLUMN took_us BIGINT;

ALTER TABLE millrace_history ADD COLUMN trace BYTEA;

-- For people: docs/sql-views.md.
-- What is stored as bytes, as text: itself if it is UTF-8, else in hexadecimal digits.
CREATE OR REPLACE FUNCTION millrace_text(stored BYTEA) RETURNS TEXT LANGUAGE SQL STABLE AS $$
  SELECT CASE
    WHEN GETDATABASEENCODING() = 'UTF8' AND ENCODE(stored, 'hex') ~ (
      '^(0[1-9a-f]|[1-7][0-9a-f]|(c[2-9a-f]|d[0-9a-f])[89ab][0-9a-f]|e0[ab][0-9a-f][89ab][0-9a-f]|' ||
      'e[1-9abcef]([89ab][0-9a-f]){2}|ed[89][0-9a-f][89ab][0-9a-f]|f0[9ab][0-9a-f]([89ab][0-9a-f]){2}|' ||
      'f[1-3]([89ab][0-9a-f]){3}|f48[0-9a-f]([89ab][0-9a-f]){2})*$')
    THEN CONVERT_FROM(stored, 'UTF8') ELSE '0x' || UPPER(ENCODE(stored, 'hex')) END $$;

-- A stored key, as the command shows it.
CREATE OR REPLACE FUNCTION millrace_key(stored BYTEA) RETURNS TEXT LANGUAGE SQL STABLE AS $$
  SELECT CASE
    WHEN LENGTH(stored) = 0 THEN ''
    WHEN GET_BYTE(stored, 0) = 1 AND LENGTH(stored) = 17 THEN (ENCODE(SUBSTR(stored, 2), 'hex')::UUID)::TEXT
    WHEN GET_BYTE(stored, 0) = 2 THEN CASE
    WHEN GETDATABASEENCODING() = 'UTF8' AND ENCODE(SUBSTR(stored, 2), 'hex') ~ (
      '^(0[1-9a-f]|[1-7][0-9a-f]|(c[2-9a-f]|d[0-9a-f])[89ab][0-9a-f]|e0[ab][0-9a-f][89ab][0-9a-f]|' ||
      'e[1-9abcef]([89ab][0-9a-f]){2}|ed[89][0-9a-f][89ab][0-9a-f]|f0[9ab][0-9a-f]([89ab][0-9a-f]){2}|' ||
      'f[1-3]([89ab][0-9a-f]){3}|f48[0-9a-f]([89ab][0-9a-f]){2})*$')
    THEN CONVERT_FROM(SUBSTR(stored, 2), 'UTF8') ELSE '0x' || UPPER(ENCODE(SUBSTR(stored, 2), 'hex')) END
    WHEN GET_BYTE(stored, 0) = 4 THEN 'collision:' || ENCODE(SUBSTR(stored, 2), 'hex')
    WHEN GET_BYTE(stored, 0) = 5 THEN 'keyless:' || ENCODE(SUBSTR(stored, 2), 'hex')
    ELSE 'sha256:' || ENCODE(SUBSTR(stored, 2), 'hex') END $$;

-- A stored time. 0 stands for none.
CREATE OR REPLACE FUNCTION millrace_time(us BIGINT) RETURNS TIMESTAMPTZ LANGUAGE SQL STABLE AS $$
  SELECT CASE WHEN us BETWEEN 1 AND 253402300799999999 THEN TIMESTAMPTZ 'epoch' + us * INTERVAL '1 microsecond' END $$;

CREATE OR REPLACE VIEW millrace_v_consumers AS
  SELECT
    t.id,
    millrace_text(t.namespace) AS namespace,
    millrace_text(CASE WHEN SUBSTR(t.name, 1, 7) = DECODE('006C6561736500', 'hex') THEN SUBSTR(t.name, 8) ELSE t.name END) AS consumer,
    t.epoch,
    CASE WHEN SUBSTR(t.name, 1, 7) = DECODE('006C6561736500', 'hex') THEN 1 ELSE 0 END AS of_leases,
    millrace_text(t.key_source) AS key_source,
    CASE WHEN t.retention > 0 THEN t.retention / 1000000 END AS retention_seconds,
    t.paused,
    millrace_time(t.served_until) AS served_until,
    millrace_time(t.purged_at) AS purged_at,
    millrace_time(t.created_at) AS created_at
  FROM millrace_consumers t;

CREATE OR REPLACE VIEW millrace_v_messages AS
  SELECT
    t.id,
    c.namespace,
    c.consumer,
    c.epoch,
    millrace_key(t.message_id) AS message_key,
    CASE t.status WHEN 1 THEN 'RECEIVED' WHEN 2 THEN 'IN_PROGRESS' WHEN 3 THEN 'SETTLING' WHEN 4 THEN 'FAILED_RETRYABLE'
      WHEN 5 THEN 'FAILED_TERMINAL' WHEN 6 THEN 'PARKED' WHEN 7 THEN 'HELD' ELSE CAST(t.status AS TEXT) END AS state,
    t.attempts,
    millrace_text(t.topic) AS topic,
    t.partition_no,
    t.offset_no,
    millrace_key(t.order_key) AS order_key,
    millrace_text(t.event_type) AS event_type,
    millrace_text(t.event_version) AS event_version,
    millrace_text(t.uuid) AS uuid,
    millrace_time(t.received_at) AS received_at,
    millrace_time(CASE WHEN t.lease_token = 0 AND t.due_at < 4102444800000000 THEN t.due_at END) AS due_at,
    millrace_time(CASE WHEN t.lease_token <> 0 THEN t.due_at END) AS leased_until,
    millrace_text(t.last_error) AS last_error,
    t.error_group AS failure_group,
    millrace_text(t.reason) AS reason,
    millrace_key(t.original) AS original_key,
    millrace_key(t.aggregate) AS aggregate,
    t.version
  FROM millrace_messages t
  JOIN millrace_v_consumers c ON c.id = t.consumer;

CREATE OR REPLACE VIEW millrace_v_claims AS
  SELECT
    c.namespace,
    c.consumer,
    c.epoch,
    millrace_key(t.message_id) AS message_key,
    CASE t.result WHEN 0 THEN 'OPEN' WHEN 1 THEN 'COMPLETED' WHEN 2 THEN 'DISCARDED'
      WHEN 3 THEN 'SUPERSEDED' WHEN 4 THEN 'IMPORTED' ELSE CAST(t.result AS TEXT) END AS state,
    millrace_time(CASE WHEN t.result <> 0 THEN t.processed_at END) AS processed_at
  FROM millrace_claims t
  JOIN millrace_v_consumers c ON c.id = t.consumer;

CREATE OR REPLACE VIEW millrace_v_outcomes AS
  SELECT
    c.namespace,
    c.consumer,
    c.epoch,
    millrace_key(t.message_id) AS message_key,
    millrace_text(t.topic) AS topic,
    millrace_time(t.created_at) AS stored_at
  FROM millrace_outcomes t
  JOIN millrace_v_consumers c ON c.id = t.consumer;

CREATE OR REPLACE VIEW millrace_v_history AS
  SELECT
    c.namespace,
    c.consumer,
    c.epoch,
    millrace_key(t.message_id) AS message_key,
    t.number,
    millrace_time(t.at) AS at,
    CASE WHEN t.failed = 1 THEN 'failed' WHEN t.status = 7 THEN 'held' WHEN t.status IN (5, 6) THEN 'parked' ELSE 'put back' END AS what,
    CASE t.status WHEN 1 THEN 'RECEIVED' WHEN 2 THEN 'IN_PROGRESS' WHEN 3 THEN 'SETTLING' WHEN 4 THEN 'FAILED_RETRYABLE'
      WHEN 5 THEN 'FAILED_TERMINAL' WHEN 6 THEN 'PARKED' WHEN 7 THEN 'HELD' ELSE CAST(t.status AS TEXT) END AS state,
    t.attempts,
    CASE WHEN t.status <> 2 THEN millrace_text(t.reason) END AS reason,
    CASE WHEN t.failed = 1 AND t.status <> 2 THEN millrace_text(t.error) END AS error,
    CASE WHEN t.run_of = t.number THEN millrace_text(t.process) END AS process,
    CASE WHEN t.run_of = t.number THEN t.took_us / 1000000.0 END AS seconds,
    CASE WHEN t.run_of = t.number THEN millrace_text(t.trace) END AS trace_id,
    millrace_time(t.received_at) AS received_at
  FROM millrace_history t
  JOIN millrace_v_consumers c ON c.id = t.consumer;

CREATE OR REPLACE VIEW millrace_v_audit AS
  SELECT
    t.id,
    millrace_time(t.at) AS at,
    millrace_text(t.actor) AS operator,
    millrace_text(t.action) AS action,
    millrace_text(t.reason) AS reason,
    c.namespace,
    c.consumer,
    c.epoch,
    NULLIF(CASE WHEN t.consumer = 0 THEN millrace_text(t.message_id) ELSE millrace_key(t.message_id) END, '') AS message_key,
    millrace_text(t.detail) AS detail,
    t.bulk,
    t.messages
  FROM millrace_audit t
  LEFT JOIN millrace_v_consumers c ON c.id = t.consumer;

CREATE OR REPLACE VIEW millrace_v_audit_messages AS
  SELECT
    t.entry,
    t.number,
    millrace_time(t.at) AS at,
    a.operator,
    a.action,
    a.reason,
    a.namespace,
    a.consumer,
    a.epoch,
    millrace_key(t.message_id) AS message_key,
    millrace_key(t.original) AS original_key,
    millrace_text(t.detail) AS detail
  FROM millrace_audit_messages t
  LEFT JOIN millrace_v_audit a ON a.id = t.entry;

CREATE OR REPLACE VIEW millrace_v_dropped AS
  SELECT
    t.id,
    millrace_time(t.at) AS at,
    c.namespace,
    c.consumer,
    c.epoch,
    millrace_key(t.message_id) AS message_key,
    millrace_text(t.topic) AS topic,
    millrace_text(t.reason) AS reason
  FROM millrace_dropped t
  JOIN millrace_v_consumers c ON c.id = t.consumer;

CREATE OR REPLACE VIEW millrace_v_versions AS
  SELECT
    c.namespace,
    c.consumer,
    c.epoch,
    millrace_key(t.aggregate) AS aggregate,
    t.version,
    t.first_version,
    NULLIF(millrace_key(t.message_id), '') AS message_key
  FROM millrace_versions t
  JOIN millrace_v_consumers c ON c.id = t.consumer;

CREATE OR REPLACE VIEW millrace_v_steps AS
  SELECT
    (ENCODE(t.id, 'hex')::UUID)::TEXT AS id,
    millrace_text(t.namespace) AS namespace,
    millrace_text(t.consumer) AS consumer,
    t.epoch,
    millrace_key(t.message_id) AS message_key,
    millrace_text(t.name) AS name,
    CASE WHEN t.state = 1 AND t.until <= (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::BIGINT THEN 'in doubt'
      WHEN t.state = 1 THEN 'running' WHEN t.state = 2 THEN 'done' WHEN t.state = 3 THEN 'not done' ELSE CAST(t.state AS TEXT) END AS state,
    t.verified,
    t.attempts,
    millrace_time(t.started_at) AS started_at,
    millrace_time(t.ended_at) AS ended_at,
    millrace_text(t.problem) AS problem
  FROM millrace_steps t;

CREATE OR REPLACE VIEW millrace_v_leases AS
  SELECT
    c.namespace,
    c.consumer,
    c.epoch,
    millrace_key(t.message_id) AS message_key,
    CASE WHEN t.token = 0 THEN 'done' ELSE 'leased' END AS state,
    millrace_time(t.until) AS ends_at
  FROM millrace_leases t
  JOIN millrace_v_consumers c ON c.id = t.consumer;

CREATE OR REPLACE VIEW millrace_v_replays AS
  SELECT
    t.id,
    millrace_text(t.namespace) AS namespace,
    millrace_text(t.name) AS name,
    millrace_text(t.source) AS source,
    CASE t.state WHEN 1 THEN 'running' WHEN 2 THEN 'done' WHEN 3 THEN 'cancelled' ELSE CAST(t.state AS TEXT) END AS state,
    millrace_text(t.actor) AS operator,
    millrace_text(t.reason) AS reason,
    t.sent,
    t.skipped,
    millrace_time(t.started_at) AS started_at,
    millrace_time(t.moved_at) AS moved_at,
    millrace_time(t.finished_at) AS finished_at
  FROM millrace_replays t;

CREATE OR REPLACE VIEW millrace_v_outbox AS
  SELECT
    t.id,
    CASE t.status WHEN 0 THEN 'PENDING' WHEN 1 THEN 'RETRYING' WHEN 2 THEN 'HELD'
      WHEN 3 THEN 'PARKED' WHEN 4 THEN 'SENT' ELSE CAST(t.status AS TEXT) END AS state,
    t.topic,
    t.order_key,
    t.uuid,
    t.event_type,
    t.attempts,
    millrace_time(t.created_at) AS created_at,
    millrace_time(CASE WHEN t.status = 1 THEN t.due_at END) AS due_at,
    millrace_time(t.sent_at) AS sent_at,
    t.last_error,
    t.cause
  FROM millrace_outbox t;

CREATE OR REPLACE VIEW millrace_v_relays AS
  SELECT
    t.name,
    millrace_time(t.started_at) AS started_at,
    millrace_time(t.until) AS ends_at,
    t.broker_error,
    millrace_time(t.broker_out_since) AS broker_out_since
  FROM millrace_outbox_relays t;
