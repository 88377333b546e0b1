-- An operator's action on many messages has one entry for each consumer: detail says which messages it was to take, and
-- messages how many it has changed so far. bulk is what the entries of one action have in common. Both are NULL in
-- other entries. by_bulk serves CountBulk and SelectBulk.
ALTER TABLE millrace_audit ADD COLUMN bulk BIGINT;

ALTER TABLE millrace_audit ADD COLUMN messages BIGINT;

ALTER TABLE millrace_audit ADD UNIQUE KEY by_bulk (bulk, consumer);

-- The messages that such actions changed. by_message and by_original serve StoryAudit.
CREATE TABLE IF NOT EXISTS millrace_audit_messages (
  entry      BIGINT         NOT NULL, -- of millrace_audit
  number     BIGINT         NOT NULL, -- counts the messages of the entry, from 1 on
  at         BIGINT         NOT NULL,
  message_id VARBINARY(128) NOT NULL,
  original   VARBINARY(128), -- of a collision
  detail     BLOB           NOT NULL,
  PRIMARY KEY (entry, number),
  KEY by_message (message_id),
  KEY by_original (original)
) ENGINE = InnoDB;

-- Of the attempt that failed: the process, how long the handler ran, and its trace, if they are known. They are of the entry
-- with the number run_of: a process of the release before replaces an entry, and leaves them.
ALTER TABLE millrace_history ADD COLUMN run_of INT;

ALTER TABLE millrace_history ADD COLUMN process VARBINARY(255);

ALTER TABLE millrace_history ADD COLUMN took_us BIGINT;

ALTER TABLE millrace_history ADD COLUMN trace VARBINARY(64);

-- For people: docs/sql-views.md.
CREATE OR REPLACE VIEW millrace_v_consumers AS
  SELECT
    t.id,
    CASE WHEN CAST(CONVERT(t.namespace USING utf8mb4) AS BINARY) = t.namespace
      THEN CONVERT(t.namespace USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.namespace)) END AS namespace,
    CASE WHEN SUBSTR(t.name, 1, 7) = X'006C6561736500' THEN CASE WHEN CAST(CONVERT(SUBSTR(t.name, 8) USING utf8mb4) AS BINARY) = SUBSTR(t.name, 8)
      THEN CONVERT(SUBSTR(t.name, 8) USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(SUBSTR(t.name, 8))) END
    ELSE CASE WHEN CAST(CONVERT(t.name USING utf8mb4) AS BINARY) = t.name
      THEN CONVERT(t.name USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.name)) END END AS consumer,
    t.epoch,
    CASE WHEN SUBSTR(t.name, 1, 7) = X'006C6561736500' THEN 1 ELSE 0 END AS of_leases,
    CASE WHEN CAST(CONVERT(t.key_source USING utf8mb4) AS BINARY) = t.key_source
      THEN CONVERT(t.key_source USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.key_source)) END AS key_source,
    CASE WHEN t.retention > 0 THEN t.retention DIV 1000000 END AS retention_seconds,
    t.paused,
    CASE WHEN t.served_until BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.served_until MICROSECOND END AS served_until,
    CASE WHEN t.purged_at BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.purged_at MICROSECOND END AS purged_at,
    CASE WHEN t.created_at BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.created_at MICROSECOND END AS created_at
  FROM millrace_consumers t;

CREATE OR REPLACE VIEW millrace_v_messages AS
  SELECT
    t.id,
    c.namespace,
    c.consumer,
    c.epoch,
    CASE
      WHEN LENGTH(t.message_id) = 0 THEN ''
      WHEN SUBSTR(t.message_id, 1, 1) = X'01' AND LENGTH(t.message_id) = 17 THEN LOWER(CONCAT_WS('-',
        HEX(SUBSTR(t.message_id, 2, 4)), HEX(SUBSTR(t.message_id, 6, 2)), HEX(SUBSTR(t.message_id, 8, 2)), HEX(SUBSTR(t.message_id, 10, 2)), HEX(SUBSTR(t.message_id, 12, 6))))
      WHEN SUBSTR(t.message_id, 1, 1) = X'02' THEN CASE WHEN CAST(CONVERT(SUBSTR(t.message_id, 2) USING utf8mb4) AS BINARY) = SUBSTR(t.message_id, 2)
      THEN CONVERT(SUBSTR(t.message_id, 2) USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(SUBSTR(t.message_id, 2))) END
      WHEN SUBSTR(t.message_id, 1, 1) = X'04' THEN CONCAT('collision:', LOWER(HEX(SUBSTR(t.message_id, 2))))
      WHEN SUBSTR(t.message_id, 1, 1) = X'05' THEN CONCAT('keyless:', LOWER(HEX(SUBSTR(t.message_id, 2))))
      ELSE CONCAT('sha256:', LOWER(HEX(SUBSTR(t.message_id, 2)))) END AS message_key,
    CASE t.status WHEN 1 THEN 'RECEIVED' WHEN 2 THEN 'IN_PROGRESS' WHEN 3 THEN 'SETTLING' WHEN 4 THEN 'FAILED_RETRYABLE'
      WHEN 5 THEN 'FAILED_TERMINAL' WHEN 6 THEN 'PARKED' WHEN 7 THEN 'HELD' ELSE CAST(t.status AS CHAR) END AS state,
    t.attempts,
    CASE WHEN CAST(CONVERT(t.topic USING utf8mb4) AS BINARY) = t.topic
      THEN CONVERT(t.topic USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.topic)) END AS topic,
    t.partition_no,
    t.offset_no,
    CASE
      WHEN LENGTH(t.order_key) = 0 THEN ''
      WHEN SUBSTR(t.order_key, 1, 1) = X'01' AND LENGTH(t.order_key) = 17 THEN LOWER(CONCAT_WS('-',
        HEX(SUBSTR(t.order_key, 2, 4)), HEX(SUBSTR(t.order_key, 6, 2)), HEX(SUBSTR(t.order_key, 8, 2)), HEX(SUBSTR(t.order_key, 10, 2)), HEX(SUBSTR(t.order_key, 12, 6))))
      WHEN SUBSTR(t.order_key, 1, 1) = X'02' THEN CASE WHEN CAST(CONVERT(SUBSTR(t.order_key, 2) USING utf8mb4) AS BINARY) = SUBSTR(t.order_key, 2)
      THEN CONVERT(SUBSTR(t.order_key, 2) USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(SUBSTR(t.order_key, 2))) END
      WHEN SUBSTR(t.order_key, 1, 1) = X'04' THEN CONCAT('collision:', LOWER(HEX(SUBSTR(t.order_key, 2))))
      WHEN SUBSTR(t.order_key, 1, 1) = X'05' THEN CONCAT('keyless:', LOWER(HEX(SUBSTR(t.order_key, 2))))
      ELSE CONCAT('sha256:', LOWER(HEX(SUBSTR(t.order_key, 2)))) END AS order_key,
    CASE WHEN CAST(CONVERT(t.event_type USING utf8mb4) AS BINARY) = t.event_type
      THEN CONVERT(t.event_type USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.event_type)) END AS event_type,
    CASE WHEN CAST(CONVERT(t.event_version USING utf8mb4) AS BINARY) = t.event_version
      THEN CONVERT(t.event_version USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.event_version)) END AS event_version,
    CASE WHEN CAST(CONVERT(t.uuid USING utf8mb4) AS BINARY) = t.uuid
      THEN CONVERT(t.uuid USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.uuid)) END AS uuid,
    CASE WHEN t.received_at BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.received_at MICROSECOND END AS received_at,
    CASE WHEN t.lease_token = 0 AND t.due_at < 4102444800000000 AND t.due_at BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.due_at MICROSECOND END AS due_at,
    CASE WHEN t.lease_token <> 0 AND t.due_at BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.due_at MICROSECOND END AS leased_until,
    CASE WHEN CAST(CONVERT(t.last_error USING utf8mb4) AS BINARY) = t.last_error
      THEN CONVERT(t.last_error USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.last_error)) END AS last_error,
    t.error_group AS failure_group,
    CASE WHEN CAST(CONVERT(t.reason USING utf8mb4) AS BINARY) = t.reason
      THEN CONVERT(t.reason USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.reason)) END AS reason,
    CASE
      WHEN LENGTH(t.original) = 0 THEN ''
      WHEN SUBSTR(t.original, 1, 1) = X'01' AND LENGTH(t.original) = 17 THEN LOWER(CONCAT_WS('-',
        HEX(SUBSTR(t.original, 2, 4)), HEX(SUBSTR(t.original, 6, 2)), HEX(SUBSTR(t.original, 8, 2)), HEX(SUBSTR(t.original, 10, 2)), HEX(SUBSTR(t.original, 12, 6))))
      WHEN SUBSTR(t.original, 1, 1) = X'02' THEN CASE WHEN CAST(CONVERT(SUBSTR(t.original, 2) USING utf8mb4) AS BINARY) = SUBSTR(t.original, 2)
      THEN CONVERT(SUBSTR(t.original, 2) USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(SUBSTR(t.original, 2))) END
      WHEN SUBSTR(t.original, 1, 1) = X'04' THEN CONCAT('collision:', LOWER(HEX(SUBSTR(t.original, 2))))
      WHEN SUBSTR(t.original, 1, 1) = X'05' THEN CONCAT('keyless:', LOWER(HEX(SUBSTR(t.original, 2))))
      ELSE CONCAT('sha256:', LOWER(HEX(SUBSTR(t.original, 2)))) END AS original_key,
    CASE
      WHEN LENGTH(t.aggregate) = 0 THEN ''
      WHEN SUBSTR(t.aggregate, 1, 1) = X'01' AND LENGTH(t.aggregate) = 17 THEN LOWER(CONCAT_WS('-',
        HEX(SUBSTR(t.aggregate, 2, 4)), HEX(SUBSTR(t.aggregate, 6, 2)), HEX(SUBSTR(t.aggregate, 8, 2)), HEX(SUBSTR(t.aggregate, 10, 2)), HEX(SUBSTR(t.aggregate, 12, 6))))
      WHEN SUBSTR(t.aggregate, 1, 1) = X'02' THEN CASE WHEN CAST(CONVERT(SUBSTR(t.aggregate, 2) USING utf8mb4) AS BINARY) = SUBSTR(t.aggregate, 2)
      THEN CONVERT(SUBSTR(t.aggregate, 2) USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(SUBSTR(t.aggregate, 2))) END
      WHEN SUBSTR(t.aggregate, 1, 1) = X'04' THEN CONCAT('collision:', LOWER(HEX(SUBSTR(t.aggregate, 2))))
      WHEN SUBSTR(t.aggregate, 1, 1) = X'05' THEN CONCAT('keyless:', LOWER(HEX(SUBSTR(t.aggregate, 2))))
      ELSE CONCAT('sha256:', LOWER(HEX(SUBSTR(t.aggregate, 2)))) END AS aggregate,
    t.version
  FROM millrace_messages t
  JOIN millrace_v_consumers c ON c.id = t.consumer;

CREATE OR REPLACE VIEW millrace_v_claims AS
  SELECT
    c.namespace,
    c.consumer,
    c.epoch,
    CASE
      WHEN LENGTH(t.message_id) = 0 THEN ''
      WHEN SUBSTR(t.message_id, 1, 1) = X'01' AND LENGTH(t.message_id) = 17 THEN LOWER(CONCAT_WS('-',
        HEX(SUBSTR(t.message_id, 2, 4)), HEX(SUBSTR(t.message_id, 6, 2)), HEX(SUBSTR(t.message_id, 8, 2)), HEX(SUBSTR(t.message_id, 10, 2)), HEX(SUBSTR(t.message_id, 12, 6))))
      WHEN SUBSTR(t.message_id, 1, 1) = X'02' THEN CASE WHEN CAST(CONVERT(SUBSTR(t.message_id, 2) USING utf8mb4) AS BINARY) = SUBSTR(t.message_id, 2)
      THEN CONVERT(SUBSTR(t.message_id, 2) USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(SUBSTR(t.message_id, 2))) END
      WHEN SUBSTR(t.message_id, 1, 1) = X'04' THEN CONCAT('collision:', LOWER(HEX(SUBSTR(t.message_id, 2))))
      WHEN SUBSTR(t.message_id, 1, 1) = X'05' THEN CONCAT('keyless:', LOWER(HEX(SUBSTR(t.message_id, 2))))
      ELSE CONCAT('sha256:', LOWER(HEX(SUBSTR(t.message_id, 2)))) END AS message_key,
    CASE t.result WHEN 0 THEN 'OPEN' WHEN 1 THEN 'COMPLETED' WHEN 2 THEN 'DISCARDED'
      WHEN 3 THEN 'SUPERSEDED' WHEN 4 THEN 'IMPORTED' ELSE CAST(t.result AS CHAR) END AS state,
    CASE WHEN t.result <> 0 AND t.processed_at BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.processed_at MICROSECOND END AS processed_at
  FROM millrace_claims t
  JOIN millrace_v_consumers c ON c.id = t.consumer;

CREATE OR REPLACE VIEW millrace_v_outcomes AS
  SELECT
    c.namespace,
    c.consumer,
    c.epoch,
    CASE
      WHEN LENGTH(t.message_id) = 0 THEN ''
      WHEN SUBSTR(t.message_id, 1, 1) = X'01' AND LENGTH(t.message_id) = 17 THEN LOWER(CONCAT_WS('-',
        HEX(SUBSTR(t.message_id, 2, 4)), HEX(SUBSTR(t.message_id, 6, 2)), HEX(SUBSTR(t.message_id, 8, 2)), HEX(SUBSTR(t.message_id, 10, 2)), HEX(SUBSTR(t.message_id, 12, 6))))
      WHEN SUBSTR(t.message_id, 1, 1) = X'02' THEN CASE WHEN CAST(CONVERT(SUBSTR(t.message_id, 2) USING utf8mb4) AS BINARY) = SUBSTR(t.message_id, 2)
      THEN CONVERT(SUBSTR(t.message_id, 2) USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(SUBSTR(t.message_id, 2))) END
      WHEN SUBSTR(t.message_id, 1, 1) = X'04' THEN CONCAT('collision:', LOWER(HEX(SUBSTR(t.message_id, 2))))
      WHEN SUBSTR(t.message_id, 1, 1) = X'05' THEN CONCAT('keyless:', LOWER(HEX(SUBSTR(t.message_id, 2))))
      ELSE CONCAT('sha256:', LOWER(HEX(SUBSTR(t.message_id, 2)))) END AS message_key,
    CASE WHEN CAST(CONVERT(t.topic USING utf8mb4) AS BINARY) = t.topic
      THEN CONVERT(t.topic USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.topic)) END AS topic,
    CASE WHEN t.created_at BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.created_at MICROSECOND END AS stored_at
  FROM millrace_outcomes t
  JOIN millrace_v_consumers c ON c.id = t.consumer;

CREATE OR REPLACE VIEW millrace_v_history AS
  SELECT
    c.namespace,
    c.consumer,
    c.epoch,
    CASE
      WHEN LENGTH(t.message_id) = 0 THEN ''
      WHEN SUBSTR(t.message_id, 1, 1) = X'01' AND LENGTH(t.message_id) = 17 THEN LOWER(CONCAT_WS('-',
        HEX(SUBSTR(t.message_id, 2, 4)), HEX(SUBSTR(t.message_id, 6, 2)), HEX(SUBSTR(t.message_id, 8, 2)), HEX(SUBSTR(t.message_id, 10, 2)), HEX(SUBSTR(t.message_id, 12, 6))))
      WHEN SUBSTR(t.message_id, 1, 1) = X'02' THEN CASE WHEN CAST(CONVERT(SUBSTR(t.message_id, 2) USING utf8mb4) AS BINARY) = SUBSTR(t.message_id, 2)
      THEN CONVERT(SUBSTR(t.message_id, 2) USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(SUBSTR(t.message_id, 2))) END
      WHEN SUBSTR(t.message_id, 1, 1) = X'04' THEN CONCAT('collision:', LOWER(HEX(SUBSTR(t.message_id, 2))))
      WHEN SUBSTR(t.message_id, 1, 1) = X'05' THEN CONCAT('keyless:', LOWER(HEX(SUBSTR(t.message_id, 2))))
      ELSE CONCAT('sha256:', LOWER(HEX(SUBSTR(t.message_id, 2)))) END AS message_key,
    t.number,
    CASE WHEN t.at BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.at MICROSECOND END AS at,
    CASE WHEN t.failed = 1 THEN 'failed' WHEN t.status = 7 THEN 'held' WHEN t.status IN (5, 6) THEN 'parked' ELSE 'put back' END AS what,
    CASE t.status WHEN 1 THEN 'RECEIVED' WHEN 2 THEN 'IN_PROGRESS' WHEN 3 THEN 'SETTLING' WHEN 4 THEN 'FAILED_RETRYABLE'
      WHEN 5 THEN 'FAILED_TERMINAL' WHEN 6 THEN 'PARKED' WHEN 7 THEN 'HELD' ELSE CAST(t.status AS CHAR) END AS state,
    t.attempts,
    CASE WHEN t.status <> 2 THEN CASE WHEN CAST(CONVERT(t.reason USING utf8mb4) AS BINARY) = t.reason
      THEN CONVERT(t.reason USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.reason)) END END AS reason,
    CASE WHEN t.failed = 1 AND t.status <> 2 THEN CASE WHEN CAST(CONVERT(t.error USING utf8mb4) AS BINARY) = t.error
      THEN CONVERT(t.error USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.error)) END END AS error,
    CASE WHEN t.run_of = t.number THEN CASE WHEN CAST(CONVERT(t.process USING utf8mb4) AS BINARY) = t.process
      THEN CONVERT(t.process USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.process)) END END AS process,
    CASE WHEN t.run_of = t.number THEN t.took_us / 1000000.0 END AS seconds,
    CASE WHEN t.run_of = t.number THEN CASE WHEN CAST(CONVERT(t.trace USING utf8mb4) AS BINARY) = t.trace
      THEN CONVERT(t.trace USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.trace)) END END AS trace_id,
    CASE WHEN t.received_at BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.received_at MICROSECOND END AS received_at
  FROM millrace_history t
  JOIN millrace_v_consumers c ON c.id = t.consumer;

CREATE OR REPLACE VIEW millrace_v_audit AS
  SELECT
    t.id,
    CASE WHEN t.at BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.at MICROSECOND END AS at,
    CASE WHEN CAST(CONVERT(t.actor USING utf8mb4) AS BINARY) = t.actor
      THEN CONVERT(t.actor USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.actor)) END AS operator,
    CASE WHEN CAST(CONVERT(t.action USING utf8mb4) AS BINARY) = t.action
      THEN CONVERT(t.action USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.action)) END AS action,
    CASE WHEN CAST(CONVERT(t.reason USING utf8mb4) AS BINARY) = t.reason
      THEN CONVERT(t.reason USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.reason)) END AS reason,
    c.namespace,
    c.consumer,
    c.epoch,
    NULLIF(CASE WHEN t.consumer = 0 THEN CASE WHEN CAST(CONVERT(t.message_id USING utf8mb4) AS BINARY) = t.message_id
      THEN CONVERT(t.message_id USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.message_id)) END ELSE CASE
      WHEN LENGTH(t.message_id) = 0 THEN ''
      WHEN SUBSTR(t.message_id, 1, 1) = X'01' AND LENGTH(t.message_id) = 17 THEN LOWER(CONCAT_WS('-',
        HEX(SUBSTR(t.message_id, 2, 4)), HEX(SUBSTR(t.message_id, 6, 2)), HEX(SUBSTR(t.message_id, 8, 2)), HEX(SUBSTR(t.message_id, 10, 2)), HEX(SUBSTR(t.message_id, 12, 6))))
      WHEN SUBSTR(t.message_id, 1, 1) = X'02' THEN CASE WHEN CAST(CONVERT(SUBSTR(t.message_id, 2) USING utf8mb4) AS BINARY) = SUBSTR(t.message_id, 2)
      THEN CONVERT(SUBSTR(t.message_id, 2) USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(SUBSTR(t.message_id, 2))) END
      WHEN SUBSTR(t.message_id, 1, 1) = X'04' THEN CONCAT('collision:', LOWER(HEX(SUBSTR(t.message_id, 2))))
      WHEN SUBSTR(t.message_id, 1, 1) = X'05' THEN CONCAT('keyless:', LOWER(HEX(SUBSTR(t.message_id, 2))))
      ELSE CONCAT('sha256:', LOWER(HEX(SUBSTR(t.message_id, 2)))) END END, '') AS message_key,
    CASE WHEN CAST(CONVERT(t.detail USING utf8mb4) AS BINARY) = t.detail
      THEN CONVERT(t.detail USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.detail)) END AS detail,
    t.bulk,
    t.messages
  FROM millrace_audit t
  LEFT JOIN millrace_v_consumers c ON c.id = t.consumer;

CREATE OR REPLACE VIEW millrace_v_audit_messages AS
  SELECT
    t.entry,
    t.number,
    CASE WHEN t.at BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.at MICROSECOND END AS at,
    a.operator,
    a.action,
    a.reason,
    a.namespace,
    a.consumer,
    a.epoch,
    CASE
      WHEN LENGTH(t.message_id) = 0 THEN ''
      WHEN SUBSTR(t.message_id, 1, 1) = X'01' AND LENGTH(t.message_id) = 17 THEN LOWER(CONCAT_WS('-',
        HEX(SUBSTR(t.message_id, 2, 4)), HEX(SUBSTR(t.message_id, 6, 2)), HEX(SUBSTR(t.message_id, 8, 2)), HEX(SUBSTR(t.message_id, 10, 2)), HEX(SUBSTR(t.message_id, 12, 6))))
      WHEN SUBSTR(t.message_id, 1, 1) = X'02' THEN CASE WHEN CAST(CONVERT(SUBSTR(t.message_id, 2) USING utf8mb4) AS BINARY) = SUBSTR(t.message_id, 2)
      THEN CONVERT(SUBSTR(t.message_id, 2) USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(SUBSTR(t.message_id, 2))) END
      WHEN SUBSTR(t.message_id, 1, 1) = X'04' THEN CONCAT('collision:', LOWER(HEX(SUBSTR(t.message_id, 2))))
      WHEN SUBSTR(t.message_id, 1, 1) = X'05' THEN CONCAT('keyless:', LOWER(HEX(SUBSTR(t.message_id, 2))))
      ELSE CONCAT('sha256:', LOWER(HEX(SUBSTR(t.message_id, 2)))) END AS message_key,
    CASE
      WHEN LENGTH(t.original) = 0 THEN ''
      WHEN SUBSTR(t.original, 1, 1) = X'01' AND LENGTH(t.original) = 17 THEN LOWER(CONCAT_WS('-',
        HEX(SUBSTR(t.original, 2, 4)), HEX(SUBSTR(t.original, 6, 2)), HEX(SUBSTR(t.original, 8, 2)), HEX(SUBSTR(t.original, 10, 2)), HEX(SUBSTR(t.original, 12, 6))))
      WHEN SUBSTR(t.original, 1, 1) = X'02' THEN CASE WHEN CAST(CONVERT(SUBSTR(t.original, 2) USING utf8mb4) AS BINARY) = SUBSTR(t.original, 2)
      THEN CONVERT(SUBSTR(t.original, 2) USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(SUBSTR(t.original, 2))) END
      WHEN SUBSTR(t.original, 1, 1) = X'04' THEN CONCAT('collision:', LOWER(HEX(SUBSTR(t.original, 2))))
      WHEN SUBSTR(t.original, 1, 1) = X'05' THEN CONCAT('keyless:', LOWER(HEX(SUBSTR(t.original, 2))))
      ELSE CONCAT('sha256:', LOWER(HEX(SUBSTR(t.original, 2)))) END AS original_key,
    CASE WHEN CAST(CONVERT(t.detail USING utf8mb4) AS BINARY) = t.detail
      THEN CONVERT(t.detail USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.detail)) END AS detail
  FROM millrace_audit_messages t
  LEFT JOIN millrace_v_audit a ON a.id = t.entry;

CREATE OR REPLACE VIEW millrace_v_dropped AS
  SELECT
    t.id,
    CASE WHEN t.at BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.at MICROSECOND END AS at,
    c.namespace,
    c.consumer,
    c.epoch,
    CASE
      WHEN LENGTH(t.message_id) = 0 THEN ''
      WHEN SUBSTR(t.message_id, 1, 1) = X'01' AND LENGTH(t.message_id) = 17 THEN LOWER(CONCAT_WS('-',
        HEX(SUBSTR(t.message_id, 2, 4)), HEX(SUBSTR(t.message_id, 6, 2)), HEX(SUBSTR(t.message_id, 8, 2)), HEX(SUBSTR(t.message_id, 10, 2)), HEX(SUBSTR(t.message_id, 12, 6))))
      WHEN SUBSTR(t.message_id, 1, 1) = X'02' THEN CASE WHEN CAST(CONVERT(SUBSTR(t.message_id, 2) USING utf8mb4) AS BINARY) = SUBSTR(t.message_id, 2)
      THEN CONVERT(SUBSTR(t.message_id, 2) USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(SUBSTR(t.message_id, 2))) END
      WHEN SUBSTR(t.message_id, 1, 1) = X'04' THEN CONCAT('collision:', LOWER(HEX(SUBSTR(t.message_id, 2))))
      WHEN SUBSTR(t.message_id, 1, 1) = X'05' THEN CONCAT('keyless:', LOWER(HEX(SUBSTR(t.message_id, 2))))
      ELSE CONCAT('sha256:', LOWER(HEX(SUBSTR(t.message_id, 2)))) END AS message_key,
    CASE WHEN CAST(CONVERT(t.topic USING utf8mb4) AS BINARY) = t.topic
      THEN CONVERT(t.topic USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.topic)) END AS topic,
    CASE WHEN CAST(CONVERT(t.reason USING utf8mb4) AS BINARY) = t.reason
      THEN CONVERT(t.reason USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.reason)) END AS reason
  FROM millrace_dropped t
  JOIN millrace_v_consumers c ON c.id = t.consumer;

CREATE OR REPLACE VIEW millrace_v_versions AS
  SELECT
    c.namespace,
    c.consumer,
    c.epoch,
    CASE
      WHEN LENGTH(t.aggregate) = 0 THEN ''
      WHEN SUBSTR(t.aggregate, 1, 1) = X'01' AND LENGTH(t.aggregate) = 17 THEN LOWER(CONCAT_WS('-',
        HEX(SUBSTR(t.aggregate, 2, 4)), HEX(SUBSTR(t.aggregate, 6, 2)), HEX(SUBSTR(t.aggregate, 8, 2)), HEX(SUBSTR(t.aggregate, 10, 2)), HEX(SUBSTR(t.aggregate, 12, 6))))
      WHEN SUBSTR(t.aggregate, 1, 1) = X'02' THEN CASE WHEN CAST(CONVERT(SUBSTR(t.aggregate, 2) USING utf8mb4) AS BINARY) = SUBSTR(t.aggregate, 2)
      THEN CONVERT(SUBSTR(t.aggregate, 2) USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(SUBSTR(t.aggregate, 2))) END
      WHEN SUBSTR(t.aggregate, 1, 1) = X'04' THEN CONCAT('collision:', LOWER(HEX(SUBSTR(t.aggregate, 2))))
      WHEN SUBSTR(t.aggregate, 1, 1) = X'05' THEN CONCAT('keyless:', LOWER(HEX(SUBSTR(t.aggregate, 2))))
      ELSE CONCAT('sha256:', LOWER(HEX(SUBSTR(t.aggregate, 2)))) END AS aggregate,
    t.version,
    t.first_version,
    NULLIF(CASE
      WHEN LENGTH(t.message_id) = 0 THEN ''
      WHEN SUBSTR(t.message_id, 1, 1) = X'01' AND LENGTH(t.message_id) = 17 THEN LOWER(CONCAT_WS('-',
        HEX(SUBSTR(t.message_id, 2, 4)), HEX(SUBSTR(t.message_id, 6, 2)), HEX(SUBSTR(t.message_id, 8, 2)), HEX(SUBSTR(t.message_id, 10, 2)), HEX(SUBSTR(t.message_id, 12, 6))))
      WHEN SUBSTR(t.message_id, 1, 1) = X'02' THEN CASE WHEN CAST(CONVERT(SUBSTR(t.message_id, 2) USING utf8mb4) AS BINARY) = SUBSTR(t.message_id, 2)
      THEN CONVERT(SUBSTR(t.message_id, 2) USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(SUBSTR(t.message_id, 2))) END
      WHEN SUBSTR(t.message_id, 1, 1) = X'04' THEN CONCAT('collision:', LOWER(HEX(SUBSTR(t.message_id, 2))))
      WHEN SUBSTR(t.message_id, 1, 1) = X'05' THEN CONCAT('keyless:', LOWER(HEX(SUBSTR(t.message_id, 2))))
      ELSE CONCAT('sha256:', LOWER(HEX(SUBSTR(t.message_id, 2)))) END, '') AS message_key
  FROM millrace_versions t
  JOIN millrace_v_consumers c ON c.id = t.consumer;

CREATE OR REPLACE VIEW millrace_v_steps AS
  SELECT
    LOWER(CONCAT_WS('-', HEX(SUBSTR(t.id, 1, 4)), HEX(SUBSTR(t.id, 5, 2)), HEX(SUBSTR(t.id, 7, 2)),
      HEX(SUBSTR(t.id, 9, 2)), HEX(SUBSTR(t.id, 11, 6)))) AS id,
    CASE WHEN CAST(CONVERT(t.namespace USING utf8mb4) AS BINARY) = t.namespace
      THEN CONVERT(t.namespace USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.namespace)) END AS namespace,
    CASE WHEN CAST(CONVERT(t.consumer USING utf8mb4) AS BINARY) = t.consumer
      THEN CONVERT(t.consumer USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.consumer)) END AS consumer,
    t.epoch,
    CASE
      WHEN LENGTH(t.message_id) = 0 THEN ''
      WHEN SUBSTR(t.message_id, 1, 1) = X'01' AND LENGTH(t.message_id) = 17 THEN LOWER(CONCAT_WS('-',
        HEX(SUBSTR(t.message_id, 2, 4)), HEX(SUBSTR(t.message_id, 6, 2)), HEX(SUBSTR(t.message_id, 8, 2)), HEX(SUBSTR(t.message_id, 10, 2)), HEX(SUBSTR(t.message_id, 12, 6))))
      WHEN SUBSTR(t.message_id, 1, 1) = X'02' THEN CASE WHEN CAST(CONVERT(SUBSTR(t.message_id, 2) USING utf8mb4) AS BINARY) = SUBSTR(t.message_id, 2)
      THEN CONVERT(SUBSTR(t.message_id, 2) USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(SUBSTR(t.message_id, 2))) END
      WHEN SUBSTR(t.message_id, 1, 1) = X'04' THEN CONCAT('collision:', LOWER(HEX(SUBSTR(t.message_id, 2))))
      WHEN SUBSTR(t.message_id, 1, 1) = X'05' THEN CONCAT('keyless:', LOWER(HEX(SUBSTR(t.message_id, 2))))
      ELSE CONCAT('sha256:', LOWER(HEX(SUBSTR(t.message_id, 2)))) END AS message_key,
    CASE WHEN CAST(CONVERT(t.name USING utf8mb4) AS BINARY) = t.name
      THEN CONVERT(t.name USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.name)) END AS name,
    CASE WHEN t.state = 1 AND t.until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 'in doubt'
      WHEN t.state = 1 THEN 'running' WHEN t.state = 2 THEN 'done' WHEN t.state = 3 THEN 'not done' ELSE CAST(t.state AS CHAR) END AS state,
    t.verified,
    t.attempts,
    CASE WHEN t.started_at BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.started_at MICROSECOND END AS started_at,
    CASE WHEN t.ended_at BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.ended_at MICROSECOND END AS ended_at,
    CASE WHEN CAST(CONVERT(t.problem USING utf8mb4) AS BINARY) = t.problem
      THEN CONVERT(t.problem USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.problem)) END AS problem
  FROM millrace_steps t;

CREATE OR REPLACE VIEW millrace_v_leases AS
  SELECT
    c.namespace,
    c.consumer,
    c.epoch,
    CASE
      WHEN LENGTH(t.message_id) = 0 THEN ''
      WHEN SUBSTR(t.message_id, 1, 1) = X'01' AND LENGTH(t.message_id) = 17 THEN LOWER(CONCAT_WS('-',
        HEX(SUBSTR(t.message_id, 2, 4)), HEX(SUBSTR(t.message_id, 6, 2)), HEX(SUBSTR(t.message_id, 8, 2)), HEX(SUBSTR(t.message_id, 10, 2)), HEX(SUBSTR(t.message_id, 12, 6))))
      WHEN SUBSTR(t.message_id, 1, 1) = X'02' THEN CASE WHEN CAST(CONVERT(SUBSTR(t.message_id, 2) USING utf8mb4) AS BINARY) = SUBSTR(t.message_id, 2)
      THEN CONVERT(SUBSTR(t.message_id, 2) USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(SUBSTR(t.message_id, 2))) END
      WHEN SUBSTR(t.message_id, 1, 1) = X'04' THEN CONCAT('collision:', LOWER(HEX(SUBSTR(t.message_id, 2))))
      WHEN SUBSTR(t.message_id, 1, 1) = X'05' THEN CONCAT('keyless:', LOWER(HEX(SUBSTR(t.message_id, 2))))
      ELSE CONCAT('sha256:', LOWER(HEX(SUBSTR(t.message_id, 2)))) END AS message_key,
    CASE WHEN t.token = 0 THEN 'done' ELSE 'leased' END AS state,
    CASE WHEN t.until BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.until MICROSECOND END AS ends_at
  FROM millrace_leases t
  JOIN millrace_v_consumers c ON c.id = t.consumer;

CREATE OR REPLACE VIEW millrace_v_replays AS
  SELECT
    t.id,
    CASE WHEN CAST(CONVERT(t.namespace USING utf8mb4) AS BINARY) = t.namespace
      THEN CONVERT(t.namespace USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.namespace)) END AS namespace,
    CASE WHEN CAST(CONVERT(t.name USING utf8mb4) AS BINARY) = t.name
      THEN CONVERT(t.name USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.name)) END AS name,
    CASE WHEN CAST(CONVERT(t.source USING utf8mb4) AS BINARY) = t.source
      THEN CONVERT(t.source USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.source)) END AS source,
    CASE t.state WHEN 1 THEN 'running' WHEN 2 THEN 'done' WHEN 3 THEN 'cancelled' ELSE CAST(t.state AS CHAR) END AS state,
    CASE WHEN CAST(CONVERT(t.actor USING utf8mb4) AS BINARY) = t.actor
      THEN CONVERT(t.actor USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.actor)) END AS operator,
    CASE WHEN CAST(CONVERT(t.reason USING utf8mb4) AS BINARY) = t.reason
      THEN CONVERT(t.reason USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.reason)) END AS reason,
    t.sent,
    t.skipped,
    CASE WHEN t.started_at BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.started_at MICROSECOND END AS started_at,
    CASE WHEN t.moved_at BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.moved_at MICROSECOND END AS moved_at,
    CASE WHEN t.finished_at BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.finished_at MICROSECOND END AS finished_at
  FROM millrace_replays t;

CREATE OR REPLACE VIEW millrace_v_outbox AS
  SELECT
    t.id,
    CASE t.status WHEN 0 THEN 'PENDING' WHEN 1 THEN 'RETRYING' WHEN 2 THEN 'HELD'
      WHEN 3 THEN 'PARKED' WHEN 4 THEN 'SENT' ELSE CAST(t.status AS CHAR) END AS state,
    t.topic,
    t.order_key,
    t.uuid,
    t.event_type,
    t.attempts,
    CASE WHEN t.created_at BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.created_at MICROSECOND END AS created_at,
    CASE WHEN t.status = 1 AND t.due_at BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.due_at MICROSECOND END AS due_at,
    CASE WHEN t.sent_at BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.sent_at MICROSECOND END AS sent_at,
    t.last_error,
    t.cause
  FROM millrace_outbox t;

CREATE OR REPLACE VIEW millrace_v_relays AS
  SELECT
    t.name,
    CASE WHEN t.started_at BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.started_at MICROSECOND END AS started_at,
    CASE WHEN t.until BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.until MICROSECOND END AS ends_at,
    t.broker_error,
    CASE WHEN t.broker_out_since BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.broker_out_since MICROSECOND END AS broker_out_since
  FROM millrace_outbox_relays t;
