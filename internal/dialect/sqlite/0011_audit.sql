-- An operator's action on many messages has one entry for each consumer: detail says which messages it was to take, and
-- messages how many it has changed so far. bulk is what the entries of one action have in common. Both are NULL in
-- other entries.
ALTER TABLE millrace_audit ADD COLUMN bulk INTEGER;

ALTER TABLE millrace_audit ADD COLUMN messages INTEGER;

-- Serves CountBulk and SelectBulk.
CREATE UNIQUE INDEX ix_millrace_audit_bulk ON millrace_audit (bulk, consumer) WHERE bulk IS NOT NULL;

-- The messages that such actions changed.
CREATE TABLE millrace_audit_messages (
  entry      INTEGER NOT NULL, -- of millrace_audit
  number     INTEGER NOT NULL, -- counts the messages of the entry, from 1 on
  at         INTEGER NOT NULL,
  message_id BLOB    NOT NULL,
  original   BLOB, -- of a collision
  detail     BLOB    NOT NULL,
  PRIMARY KEY (entry, number)
) WITHOUT ROWID;

-- These serve StoryAudit.
CREATE INDEX ix_millrace_audit_messages_key ON millrace_audit_messages (message_id);

CREATE INDEX ix_millrace_audit_messages_original ON millrace_audit_messages (original) WHERE original IS NOT NULL;

-- Of the attempt that failed: the process, how long the handler ran, and its trace, if they are known. They are of the entry
-- with the number run_of: a process of the release before replaces an entry, and leaves them.
ALTER TABLE millrace_history ADD COLUMN run_of INTEGER;

ALTER TABLE millrace_history ADD COLUMN process BLOB;

ALTER TABLE millrace_history ADD COLUMN took_us INTEGER;

ALTER TABLE millrace_history ADD COLUMN trace BLOB;

-- For people: docs/sql-views.md.
DROP VIEW IF EXISTS millrace_v_consumers;

CREATE VIEW millrace_v_consumers AS
  SELECT
    t.id,
    CAST(t.namespace AS TEXT) AS namespace,
    CAST(CASE WHEN SUBSTR(t.name, 1, 7) = X'006C6561736500' THEN SUBSTR(t.name, 8) ELSE t.name END AS TEXT) AS consumer,
    t.epoch,
    CASE WHEN SUBSTR(t.name, 1, 7) = X'006C6561736500' THEN 1 ELSE 0 END AS of_leases,
    CAST(t.key_source AS TEXT) AS key_source,
    CASE WHEN t.retention > 0 THEN t.retention / 1000000 END AS retention_seconds,
    t.paused,
    CASE WHEN t.served_until BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.served_until / 1000000, 'unixepoch') || PRINTF('.%06d', t.served_until % 1000000) END AS served_until,
    CASE WHEN t.purged_at BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.purged_at / 1000000, 'unixepoch') || PRINTF('.%06d', t.purged_at % 1000000) END AS purged_at,
    CASE WHEN t.created_at BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.created_at / 1000000, 'unixepoch') || PRINTF('.%06d', t.created_at % 1000000) END AS created_at
  FROM millrace_consumers t;

DROP VIEW IF EXISTS millrace_v_messages;

CREATE VIEW millrace_v_messages AS
  SELECT
    t.id,
    c.namespace,
    c.consumer,
    c.epoch,
    CASE
      WHEN LENGTH(t.message_id) = 0 THEN ''
      WHEN SUBSTR(t.message_id, 1, 1) = X'01' AND LENGTH(t.message_id) = 17 THEN LOWER(
        HEX(SUBSTR(t.message_id, 2, 4)) || '-' || HEX(SUBSTR(t.message_id, 6, 2)) || '-' || HEX(SUBSTR(t.message_id, 8, 2)) || '-' ||
        HEX(SUBSTR(t.message_id, 10, 2)) || '-' || HEX(SUBSTR(t.message_id, 12, 6)))
      WHEN SUBSTR(t.message_id, 1, 1) = X'02' THEN CAST(SUBSTR(t.message_id, 2) AS TEXT)
      WHEN SUBSTR(t.message_id, 1, 1) = X'04' THEN 'collision:' || LOWER(HEX(SUBSTR(t.message_id, 2)))
      WHEN SUBSTR(t.message_id, 1, 1) = X'05' THEN 'keyless:' || LOWER(HEX(SUBSTR(t.message_id, 2)))
      WHEN t.message_id IS NOT NULL THEN 'sha256:' || LOWER(HEX(SUBSTR(t.message_id, 2))) END AS message_key,
    CASE t.status WHEN 1 THEN 'RECEIVED' WHEN 2 THEN 'IN_PROGRESS' WHEN 3 THEN 'SETTLING' WHEN 4 THEN 'FAILED_RETRYABLE'
      WHEN 5 THEN 'FAILED_TERMINAL' WHEN 6 THEN 'PARKED' WHEN 7 THEN 'HELD' ELSE CAST(t.status AS TEXT) END AS state,
    t.attempts,
    CAST(t.topic AS TEXT) AS topic,
    t.partition_no,
    t.offset_no,
    CASE
      WHEN LENGTH(t.order_key) = 0 THEN ''
      WHEN SUBSTR(t.order_key, 1, 1) = X'01' AND LENGTH(t.order_key) = 17 THEN LOWER(
        HEX(SUBSTR(t.order_key, 2, 4)) || '-' || HEX(SUBSTR(t.order_key, 6, 2)) || '-' || HEX(SUBSTR(t.order_key, 8, 2)) || '-' ||
        HEX(SUBSTR(t.order_key, 10, 2)) || '-' || HEX(SUBSTR(t.order_key, 12, 6)))
      WHEN SUBSTR(t.order_key, 1, 1) = X'02' THEN CAST(SUBSTR(t.order_key, 2) AS TEXT)
      WHEN SUBSTR(t.order_key, 1, 1) = X'04' THEN 'collision:' || LOWER(HEX(SUBSTR(t.order_key, 2)))
      WHEN SUBSTR(t.order_key, 1, 1) = X'05' THEN 'keyless:' || LOWER(HEX(SUBSTR(t.order_key, 2)))
      WHEN t.order_key IS NOT NULL THEN 'sha256:' || LOWER(HEX(SUBSTR(t.order_key, 2))) END AS order_key,
    CAST(t.event_type AS TEXT) AS event_type,
    CAST(t.event_version AS TEXT) AS event_version,
    CAST(t.uuid AS TEXT) AS uuid,
    CASE WHEN t.received_at BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.received_at / 1000000, 'unixepoch') || PRINTF('.%06d', t.received_at % 1000000) END AS received_at,
    CASE WHEN t.lease_token = 0 AND t.due_at < 4102444800000000 AND t.due_at BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.due_at / 1000000, 'unixepoch') || PRINTF('.%06d', t.due_at % 1000000) END AS due_at,
    CASE WHEN t.lease_token <> 0 AND t.due_at BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.due_at / 1000000, 'unixepoch') || PRINTF('.%06d', t.due_at % 1000000) END AS leased_until,
    CAST(t.last_error AS TEXT) AS last_error,
    t.error_group AS failure_group,
    CAST(t.reason AS TEXT) AS reason,
    CASE
      WHEN LENGTH(t.original) = 0 THEN ''
      WHEN SUBSTR(t.original, 1, 1) = X'01' AND LENGTH(t.original) = 17 THEN LOWER(
        HEX(SUBSTR(t.original, 2, 4)) || '-' || HEX(SUBSTR(t.original, 6, 2)) || '-' || HEX(SUBSTR(t.original, 8, 2)) || '-' ||
        HEX(SUBSTR(t.original, 10, 2)) || '-' || HEX(SUBSTR(t.original, 12, 6)))
      WHEN SUBSTR(t.original, 1, 1) = X'02' THEN CAST(SUBSTR(t.original, 2) AS TEXT)
      WHEN SUBSTR(t.original, 1, 1) = X'04' THEN 'collision:' || LOWER(HEX(SUBSTR(t.original, 2)))
      WHEN SUBSTR(t.original, 1, 1) = X'05' THEN 'keyless:' || LOWER(HEX(SUBSTR(t.original, 2)))
      WHEN t.original IS NOT NULL THEN 'sha256:' || LOWER(HEX(SUBSTR(t.original, 2))) END AS original_key,
    CASE
      WHEN LENGTH(t.aggregate) = 0 THEN ''
      WHEN SUBSTR(t.aggregate, 1, 1) = X'01' AND LENGTH(t.aggregate) = 17 THEN LOWER(
        HEX(SUBSTR(t.aggregate, 2, 4)) || '-' || HEX(SUBSTR(t.aggregate, 6, 2)) || '-' || HEX(SUBSTR(t.aggregate, 8, 2)) || '-' ||
        HEX(SUBSTR(t.aggregate, 10, 2)) || '-' || HEX(SUBSTR(t.aggregate, 12, 6)))
      WHEN SUBSTR(t.aggregate, 1, 1) = X'02' THEN CAST(SUBSTR(t.aggregate, 2) AS TEXT)
      WHEN SUBSTR(t.aggregate, 1, 1) = X'04' THEN 'collision:' || LOWER(HEX(SUBSTR(t.aggregate, 2)))
      WHEN SUBSTR(t.aggregate, 1, 1) = X'05' THEN 'keyless:' || LOWER(HEX(SUBSTR(t.aggregate, 2)))
      WHEN t.aggregate IS NOT NULL THEN 'sha256:' || LOWER(HEX(SUBSTR(t.aggregate, 2))) END AS aggregate,
    t.version
  FROM millrace_messages t
  JOIN millrace_v_consumers c ON c.id = t.consumer;

DROP VIEW IF EXISTS millrace_v_claims;

CREATE VIEW millrace_v_claims AS
  SELECT
    c.namespace,
    c.consumer,
    c.epoch,
    CASE
      WHEN LENGTH(t.message_id) = 0 THEN ''
      WHEN SUBSTR(t.message_id, 1, 1) = X'01' AND LENGTH(t.message_id) = 17 THEN LOWER(
        HEX(SUBSTR(t.message_id, 2, 4)) || '-' || HEX(SUBSTR(t.message_id, 6, 2)) || '-' || HEX(SUBSTR(t.message_id, 8, 2)) || '-' ||
        HEX(SUBSTR(t.message_id, 10, 2)) || '-' || HEX(SUBSTR(t.message_id, 12, 6)))
      WHEN SUBSTR(t.message_id, 1, 1) = X'02' THEN CAST(SUBSTR(t.message_id, 2) AS TEXT)
      WHEN SUBSTR(t.message_id, 1, 1) = X'04' THEN 'collision:' || LOWER(HEX(SUBSTR(t.message_id, 2)))
      WHEN SUBSTR(t.message_id, 1, 1) = X'05' THEN 'keyless:' || LOWER(HEX(SUBSTR(t.message_id, 2)))
      WHEN t.message_id IS NOT NULL THEN 'sha256:' || LOWER(HEX(SUBSTR(t.message_id, 2))) END AS message_key,
    CASE t.result WHEN 0 THEN 'OPEN' WHEN 1 THEN 'COMPLETED' WHEN 2 THEN 'DISCARDED'
      WHEN 3 THEN 'SUPERSEDED' WHEN 4 THEN 'IMPORTED' ELSE CAST(t.result AS TEXT) END AS state,
    CASE WHEN t.result <> 0 AND t.processed_at BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.processed_at / 1000000, 'unixepoch') || PRINTF('.%06d', t.processed_at % 1000000) END AS processed_at
  FROM millrace_claims t
  JOIN millrace_v_consumers c ON c.id = t.consumer;

DROP VIEW IF EXISTS millrace_v_outcomes;

CREATE VIEW millrace_v_outcomes AS
  SELECT
    c.namespace,
    c.consumer,
    c.epoch,
    CASE
      WHEN LENGTH(t.message_id) = 0 THEN ''
      WHEN SUBSTR(t.message_id, 1, 1) = X'01' AND LENGTH(t.message_id) = 17 THEN LOWER(
        HEX(SUBSTR(t.message_id, 2, 4)) || '-' || HEX(SUBSTR(t.message_id, 6, 2)) || '-' || HEX(SUBSTR(t.message_id, 8, 2)) || '-' ||
        HEX(SUBSTR(t.message_id, 10, 2)) || '-' || HEX(SUBSTR(t.message_id, 12, 6)))
      WHEN SUBSTR(t.message_id, 1, 1) = X'02' THEN CAST(SUBSTR(t.message_id, 2) AS TEXT)
      WHEN SUBSTR(t.message_id, 1, 1) = X'04' THEN 'collision:' || LOWER(HEX(SUBSTR(t.message_id, 2)))
      WHEN SUBSTR(t.message_id, 1, 1) = X'05' THEN 'keyless:' || LOWER(HEX(SUBSTR(t.message_id, 2)))
      WHEN t.message_id IS NOT NULL THEN 'sha256:' || LOWER(HEX(SUBSTR(t.message_id, 2))) END AS message_key,
    CAST(t.topic AS TEXT) AS topic,
    CASE WHEN t.created_at BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.created_at / 1000000, 'unixepoch') || PRINTF('.%06d', t.created_at % 1000000) END AS stored_at
  FROM millrace_outcomes t
  JOIN millrace_v_consumers c ON c.id = t.consumer;

DROP VIEW IF EXISTS millrace_v_history;

CREATE VIEW millrace_v_history AS
  SELECT
    c.namespace,
    c.consumer,
    c.epoch,
    CASE
      WHEN LENGTH(t.message_id) = 0 THEN ''
      WHEN SUBSTR(t.message_id, 1, 1) = X'01' AND LENGTH(t.message_id) = 17 THEN LOWER(
        HEX(SUBSTR(t.message_id, 2, 4)) || '-' || HEX(SUBSTR(t.message_id, 6, 2)) || '-' || HEX(SUBSTR(t.message_id, 8, 2)) || '-' ||
        HEX(SUBSTR(t.message_id, 10, 2)) || '-' || HEX(SUBSTR(t.message_id, 12, 6)))
      WHEN SUBSTR(t.message_id, 1, 1) = X'02' THEN CAST(SUBSTR(t.message_id, 2) AS TEXT)
      WHEN SUBSTR(t.message_id, 1, 1) = X'04' THEN 'collision:' || LOWER(HEX(SUBSTR(t.message_id, 2)))
      WHEN SUBSTR(t.message_id, 1, 1) = X'05' THEN 'keyless:' || LOWER(HEX(SUBSTR(t.message_id, 2)))
      WHEN t.message_id IS NOT NULL THEN 'sha256:' || LOWER(HEX(SUBSTR(t.message_id, 2))) END AS message_key,
    t.number,
    CASE WHEN t.at BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.at / 1000000, 'unixepoch') || PRINTF('.%06d', t.at % 1000000) END AS at,
    CASE WHEN t.failed = 1 THEN 'failed' WHEN t.status = 7 THEN 'held' WHEN t.status IN (5, 6) THEN 'parked' ELSE 'put back' END AS what,
    CASE t.status WHEN 1 THEN 'RECEIVED' WHEN 2 THEN 'IN_PROGRESS' WHEN 3 THEN 'SETTLING' WHEN 4 THEN 'FAILED_RETRYABLE'
      WHEN 5 THEN 'FAILED_TERMINAL' WHEN 6 THEN 'PARKED' WHEN 7 THEN 'HELD' ELSE CAST(t.status AS TEXT) END AS state,
    t.attempts,
    CASE WHEN t.status <> 2 THEN CAST(t.reason AS TEXT) END AS reason,
    CASE WHEN t.failed = 1 AND t.status <> 2 THEN CAST(t.error AS TEXT) END AS error,
    CASE WHEN t.run_of = t.number THEN CAST(t.process AS TEXT) END AS process,
    CASE WHEN t.run_of = t.number THEN t.took_us / 1000000.0 END AS seconds,
    CASE WHEN t.run_of = t.number THEN CAST(t.trace AS TEXT) END AS trace_id,
    CASE WHEN t.received_at BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.received_at / 1000000, 'unixepoch') || PRINTF('.%06d', t.received_at % 1000000) END AS received_at
  FROM millrace_history t
  JOIN millrace_v_consumers c ON c.id = t.consumer;

DROP VIEW IF EXISTS millrace_v_audit;

CREATE VIEW millrace_v_audit AS
  SELECT
    t.id,
    CASE WHEN t.at BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.at / 1000000, 'unixepoch') || PRINTF('.%06d', t.at % 1000000) END AS at,
    CAST(t.actor AS TEXT) AS operator,
    CAST(t.action AS TEXT) AS action,
    CAST(t.reason AS TEXT) AS reason,
    c.namespace,
    c.consumer,
    c.epoch,
    NULLIF(CASE WHEN t.consumer = 0 THEN CAST(t.message_id AS TEXT) ELSE CASE
      WHEN LENGTH(t.message_id) = 0 THEN ''
      WHEN SUBSTR(t.message_id, 1, 1) = X'01' AND LENGTH(t.message_id) = 17 THEN LOWER(
        HEX(SUBSTR(t.message_id, 2, 4)) || '-' || HEX(SUBSTR(t.message_id, 6, 2)) || '-' || HEX(SUBSTR(t.message_id, 8, 2)) || '-' ||
        HEX(SUBSTR(t.message_id, 10, 2)) || '-' || HEX(SUBSTR(t.message_id, 12, 6)))
      WHEN SUBSTR(t.message_id, 1, 1) = X'02' THEN CAST(SUBSTR(t.message_id, 2) AS TEXT)
      WHEN SUBSTR(t.message_id, 1, 1) = X'04' THEN 'collision:' || LOWER(HEX(SUBSTR(t.message_id, 2)))
      WHEN SUBSTR(t.message_id, 1, 1) = X'05' THEN 'keyless:' || LOWER(HEX(SUBSTR(t.message_id, 2)))
      WHEN t.message_id IS NOT NULL THEN 'sha256:' || LOWER(HEX(SUBSTR(t.message_id, 2))) END END, '') AS message_key,
    CAST(t.detail AS TEXT) AS detail,
    t.bulk,
    t.messages
  FROM millrace_audit t
  LEFT JOIN millrace_v_consumers c ON c.id = t.consumer;

DROP VIEW IF EXISTS millrace_v_audit_messages;

CREATE VIEW millrace_v_audit_messages AS
  SELECT
    t.entry,
    t.number,
    CASE WHEN t.at BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.at / 1000000, 'unixepoch') || PRINTF('.%06d', t.at % 1000000) END AS at,
    a.operator,
    a.action,
    a.reason,
    a.namespace,
    a.consumer,
    a.epoch,
    CASE
      WHEN LENGTH(t.message_id) = 0 THEN ''
      WHEN SUBSTR(t.message_id, 1, 1) = X'01' AND LENGTH(t.message_id) = 17 THEN LOWER(
        HEX(SUBSTR(t.message_id, 2, 4)) || '-' || HEX(SUBSTR(t.message_id, 6, 2)) || '-' || HEX(SUBSTR(t.message_id, 8, 2)) || '-' ||
        HEX(SUBSTR(t.message_id, 10, 2)) || '-' || HEX(SUBSTR(t.message_id, 12, 6)))
      WHEN SUBSTR(t.message_id, 1, 1) = X'02' THEN CAST(SUBSTR(t.message_id, 2) AS TEXT)
      WHEN SUBSTR(t.message_id, 1, 1) = X'04' THEN 'collision:' || LOWER(HEX(SUBSTR(t.message_id, 2)))
      WHEN SUBSTR(t.message_id, 1, 1) = X'05' THEN 'keyless:' || LOWER(HEX(SUBSTR(t.message_id, 2)))
      WHEN t.message_id IS NOT NULL THEN 'sha256:' || LOWER(HEX(SUBSTR(t.message_id, 2))) END AS message_key,
    CASE
      WHEN LENGTH(t.original) = 0 THEN ''
      WHEN SUBSTR(t.original, 1, 1) = X'01' AND LENGTH(t.original) = 17 THEN LOWER(
        HEX(SUBSTR(t.original, 2, 4)) || '-' || HEX(SUBSTR(t.original, 6, 2)) || '-' || HEX(SUBSTR(t.original, 8, 2)) || '-' ||
        HEX(SUBSTR(t.original, 10, 2)) || '-' || HEX(SUBSTR(t.original, 12, 6)))
      WHEN SUBSTR(t.original, 1, 1) = X'02' THEN CAST(SUBSTR(t.original, 2) AS TEXT)
      WHEN SUBSTR(t.original, 1, 1) = X'04' THEN 'collision:' || LOWER(HEX(SUBSTR(t.original, 2)))
      WHEN SUBSTR(t.original, 1, 1) = X'05' THEN 'keyless:' || LOWER(HEX(SUBSTR(t.original, 2)))
      WHEN t.original IS NOT NULL THEN 'sha256:' || LOWER(HEX(SUBSTR(t.original, 2))) END AS original_key,
    CAST(t.detail AS TEXT) AS detail
  FROM millrace_audit_messages t
  LEFT JOIN millrace_v_audit a ON a.id = t.entry;

DROP VIEW IF EXISTS millrace_v_dropped;

CREATE VIEW millrace_v_dropped AS
  SELECT
    t.id,
    CASE WHEN t.at BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.at / 1000000, 'unixepoch') || PRINTF('.%06d', t.at % 1000000) END AS at,
    c.namespace,
    c.consumer,
    c.epoch,
    CASE
      WHEN LENGTH(t.message_id) = 0 THEN ''
      WHEN SUBSTR(t.message_id, 1, 1) = X'01' AND LENGTH(t.message_id) = 17 THEN LOWER(
        HEX(SUBSTR(t.message_id, 2, 4)) || '-' || HEX(SUBSTR(t.message_id, 6, 2)) || '-' || HEX(SUBSTR(t.message_id, 8, 2)) || '-' ||
        HEX(SUBSTR(t.message_id, 10, 2)) || '-' || HEX(SUBSTR(t.message_id, 12, 6)))
      WHEN SUBSTR(t.message_id, 1, 1) = X'02' THEN CAST(SUBSTR(t.message_id, 2) AS TEXT)
      WHEN SUBSTR(t.message_id, 1, 1) = X'04' THEN 'collision:' || LOWER(HEX(SUBSTR(t.message_id, 2)))
      WHEN SUBSTR(t.message_id, 1, 1) = X'05' THEN 'keyless:' || LOWER(HEX(SUBSTR(t.message_id, 2)))
      WHEN t.message_id IS NOT NULL THEN 'sha256:' || LOWER(HEX(SUBSTR(t.message_id, 2))) END AS message_key,
    CAST(t.topic AS TEXT) AS topic,
    CAST(t.reason AS TEXT) AS reason
  FROM millrace_dropped t
  JOIN millrace_v_consumers c ON c.id = t.consumer;

DROP VIEW IF EXISTS millrace_v_versions;

CREATE VIEW millrace_v_versions AS
  SELECT
    c.namespace,
    c.consumer,
    c.epoch,
    CASE
      WHEN LENGTH(t.aggregate) = 0 THEN ''
      WHEN SUBSTR(t.aggregate, 1, 1) = X'01' AND LENGTH(t.aggregate) = 17 THEN LOWER(
        HEX(SUBSTR(t.aggregate, 2, 4)) || '-' || HEX(SUBSTR(t.aggregate, 6, 2)) || '-' || HEX(SUBSTR(t.aggregate, 8, 2)) || '-' ||
        HEX(SUBSTR(t.aggregate, 10, 2)) || '-' || HEX(SUBSTR(t.aggregate, 12, 6)))
      WHEN SUBSTR(t.aggregate, 1, 1) = X'02' THEN CAST(SUBSTR(t.aggregate, 2) AS TEXT)
      WHEN SUBSTR(t.aggregate, 1, 1) = X'04' THEN 'collision:' || LOWER(HEX(SUBSTR(t.aggregate, 2)))
      WHEN SUBSTR(t.aggregate, 1, 1) = X'05' THEN 'keyless:' || LOWER(HEX(SUBSTR(t.aggregate, 2)))
      WHEN t.aggregate IS NOT NULL THEN 'sha256:' || LOWER(HEX(SUBSTR(t.aggregate, 2))) END AS aggregate,
    t.version,
    t.first_version,
    NULLIF(CASE
      WHEN LENGTH(t.message_id) = 0 THEN ''
      WHEN SUBSTR(t.message_id, 1, 1) = X'01' AND LENGTH(t.message_id) = 17 THEN LOWER(
        HEX(SUBSTR(t.message_id, 2, 4)) || '-' || HEX(SUBSTR(t.message_id, 6, 2)) || '-' || HEX(SUBSTR(t.message_id, 8, 2)) || '-' ||
        HEX(SUBSTR(t.message_id, 10, 2)) || '-' || HEX(SUBSTR(t.message_id, 12, 6)))
      WHEN SUBSTR(t.message_id, 1, 1) = X'02' THEN CAST(SUBSTR(t.message_id, 2) AS TEXT)
      WHEN SUBSTR(t.message_id, 1, 1) = X'04' THEN 'collision:' || LOWER(HEX(SUBSTR(t.message_id, 2)))
      WHEN SUBSTR(t.message_id, 1, 1) = X'05' THEN 'keyless:' || LOWER(HEX(SUBSTR(t.message_id, 2)))
      WHEN t.message_id IS NOT NULL THEN 'sha256:' || LOWER(HEX(SUBSTR(t.message_id, 2))) END, '') AS message_key
  FROM millrace_versions t
  JOIN millrace_v_consumers c ON c.id = t.consumer;

DROP VIEW IF EXISTS millrace_v_steps;

CREATE VIEW millrace_v_steps AS
  SELECT
    LOWER(HEX(SUBSTR(t.id, 1, 4)) || '-' || HEX(SUBSTR(t.id, 5, 2)) || '-' || HEX(SUBSTR(t.id, 7, 2)) || '-' ||
      HEX(SUBSTR(t.id, 9, 2)) || '-' || HEX(SUBSTR(t.id, 11, 6))) AS id,
    CAST(t.namespace AS TEXT) AS namespace,
    CAST(t.consumer AS TEXT) AS consumer,
    t.epoch,
    CASE
      WHEN LENGTH(t.message_id) = 0 THEN ''
      WHEN SUBSTR(t.message_id, 1, 1) = X'01' AND LENGTH(t.message_id) = 17 THEN LOWER(
        HEX(SUBSTR(t.message_id, 2, 4)) || '-' || HEX(SUBSTR(t.message_id, 6, 2)) || '-' || HEX(SUBSTR(t.message_id, 8, 2)) || '-' ||
        HEX(SUBSTR(t.message_id, 10, 2)) || '-' || HEX(SUBSTR(t.message_id, 12, 6)))
      WHEN SUBSTR(t.message_id, 1, 1) = X'02' THEN CAST(SUBSTR(t.message_id, 2) AS TEXT)
      WHEN SUBSTR(t.message_id, 1, 1) = X'04' THEN 'collision:' || LOWER(HEX(SUBSTR(t.message_id, 2)))
      WHEN SUBSTR(t.message_id, 1, 1) = X'05' THEN 'keyless:' || LOWER(HEX(SUBSTR(t.message_id, 2)))
      WHEN t.message_id IS NOT NULL THEN 'sha256:' || LOWER(HEX(SUBSTR(t.message_id, 2))) END AS message_key,
    CAST(t.name AS TEXT) AS name,
    CASE WHEN t.state = 1 AND t.until <= CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER) THEN 'in doubt'
      WHEN t.state = 1 THEN 'running' WHEN t.state = 2 THEN 'done' WHEN t.state = 3 THEN 'not done' ELSE CAST(t.state AS TEXT) END AS state,
    t.verified,
    t.attempts,
    CASE WHEN t.started_at BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.started_at / 1000000, 'unixepoch') || PRINTF('.%06d', t.started_at % 1000000) END AS started_at,
    CASE WHEN t.ended_at BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.ended_at / 1000000, 'unixepoch') || PRINTF('.%06d', t.ended_at % 1000000) END AS ended_at,
    CAST(t.problem AS TEXT) AS problem
  FROM millrace_steps t;

DROP VIEW IF EXISTS millrace_v_leases;

CREATE VIEW millrace_v_leases AS
  SELECT
    c.namespace,
    c.consumer,
    c.epoch,
    CASE
      WHEN LENGTH(t.message_id) = 0 THEN ''
      WHEN SUBSTR(t.message_id, 1, 1) = X'01' AND LENGTH(t.message_id) = 17 THEN LOWER(
        HEX(SUBSTR(t.message_id, 2, 4)) || '-' || HEX(SUBSTR(t.message_id, 6, 2)) || '-' || HEX(SUBSTR(t.message_id, 8, 2)) || '-' ||
        HEX(SUBSTR(t.message_id, 10, 2)) || '-' || HEX(SUBSTR(t.message_id, 12, 6)))
      WHEN SUBSTR(t.message_id, 1, 1) = X'02' THEN CAST(SUBSTR(t.message_id, 2) AS TEXT)
      WHEN SUBSTR(t.message_id, 1, 1) = X'04' THEN 'collision:' || LOWER(HEX(SUBSTR(t.message_id, 2)))
      WHEN SUBSTR(t.message_id, 1, 1) = X'05' THEN 'keyless:' || LOWER(HEX(SUBSTR(t.message_id, 2)))
      WHEN t.message_id IS NOT NULL THEN 'sha256:' || LOWER(HEX(SUBSTR(t.message_id, 2))) END AS message_key,
    CASE WHEN t.token = 0 THEN 'done' ELSE 'leased' END AS state,
    CASE WHEN t.until BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.until / 1000000, 'unixepoch') || PRINTF('.%06d', t.until % 1000000) END AS ends_at
  FROM millrace_leases t
  JOIN millrace_v_consumers c ON c.id = t.consumer;

DROP VIEW IF EXISTS millrace_v_replays;

CREATE VIEW millrace_v_replays AS
  SELECT
    t.id,
    CAST(t.namespace AS TEXT) AS namespace,
    CAST(t.name AS TEXT) AS name,
    CAST(t.source AS TEXT) AS source,
    CASE t.state WHEN 1 THEN 'running' WHEN 2 THEN 'done' WHEN 3 THEN 'cancelled' ELSE CAST(t.state AS TEXT) END AS state,
    CAST(t.actor AS TEXT) AS operator,
    CAST(t.reason AS TEXT) AS reason,
    t.sent,
    t.skipped,
    CASE WHEN t.started_at BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.started_at / 1000000, 'unixepoch') || PRINTF('.%06d', t.started_at % 1000000) END AS started_at,
    CASE WHEN t.moved_at BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.moved_at / 1000000, 'unixepoch') || PRINTF('.%06d', t.moved_at % 1000000) END AS moved_at,
    CASE WHEN t.finished_at BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.finished_at / 1000000, 'unixepoch') || PRINTF('.%06d', t.finished_at % 1000000) END AS finished_at
  FROM millrace_replays t;

DROP VIEW IF EXISTS millrace_v_outbox;

CREATE VIEW millrace_v_outbox AS
  SELECT
    t.id,
    CASE t.status WHEN 0 THEN 'PENDING' WHEN 1 THEN 'RETRYING' WHEN 2 THEN 'HELD'
      WHEN 3 THEN 'PARKED' WHEN 4 THEN 'SENT' ELSE CAST(t.status AS TEXT) END AS state,
    t.topic,
    t.order_key,
    t.uuid,
    t.event_type,
    t.attempts,
    CASE WHEN t.created_at BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.created_at / 1000000, 'unixepoch') || PRINTF('.%06d', t.created_at % 1000000) END AS created_at,
    CASE WHEN t.status = 1 AND t.due_at BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.due_at / 1000000, 'unixepoch') || PRINTF('.%06d', t.due_at % 1000000) END AS due_at,
    CASE WHEN t.sent_at BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.sent_at / 1000000, 'unixepoch') || PRINTF('.%06d', t.sent_at % 1000000) END AS sent_at,
    t.last_error,
    t.cause
  FROM millrace_outbox t;

DROP VIEW IF EXISTS millrace_v_relays;

CREATE VIEW millrace_v_relays AS
  SELECT
    t.name,
    CASE WHEN t.started_at BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.started_at / 1000000, 'unixepoch') || PRINTF('.%06d', t.started_at % 1000000) END AS started_at,
    CASE WHEN t.until BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.until / 1000000, 'unixepoch') || PRINTF('.%06d', t.until % 1000000) END AS ends_at,
    t.broker_error,
    CASE WHEN t.broker_out_since BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.broker_out_since / 1000000, 'unixepoch') || PRINTF('.%06d', t.broker_out_since % 1000000) END AS broker_out_since
  FROM millrace_outbox_relays t;
