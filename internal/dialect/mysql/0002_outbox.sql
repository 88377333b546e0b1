-- What is to be published, in the order of id. Readable by people, and by Debezium's
-- outbox event router: topic, order_key, uuid, event_type, metadata and payload.
-- by_status serves SelectPending, SelectDue, PurgeSent and CountBacklog.
-- by_blocked serves SelectBlocked, SelectOrphans and ReleaseHeld.
CREATE TABLE IF NOT EXISTS millrace_outbox (
  id          BIGINT   NOT NULL AUTO_INCREMENT PRIMARY KEY,
  key_hash    BIGINT   NOT NULL, -- of order_key, else of uuid
  created_at  BIGINT   NOT NULL,
  due_at      BIGINT   NOT NULL DEFAULT 0, -- of a failed message: when to try again; of a sent one: when to delete
  sent_at     BIGINT,
  blocked_key BIGINT, -- key_hash, where the messages of the key wait for this one or it waits for another
  attempts    INT      NOT NULL DEFAULT 0,
  status      SMALLINT NOT NULL DEFAULT 0, -- 0 pending, 1 to be tried again, 2 held behind another, 3 parked, 4 sent
  topic       TEXT     NOT NULL,
  order_key   TEXT,
  uuid        TEXT     NOT NULL,
  event_type  TEXT,
  metadata    LONGTEXT, -- a JSON object
  payload     LONGBLOB,
  last_error  TEXT,
  cause       TEXT, -- the consumer and the key of the message whose handler stored it: consumer/key
  KEY by_status (status, due_at, id),
  KEY by_blocked (blocked_key)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- One row per running relay.
CREATE TABLE IF NOT EXISTS millrace_outbox_relays (
  token      BIGINT NOT NULL PRIMARY KEY,
  name       TEXT   NOT NULL,
  started_at BIGINT NOT NULL,
  until      BIGINT NOT NULL -- end of its lease
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- One row: into how many shards the keys are divided, and into how many they are to be.
CREATE TABLE IF NOT EXISTS millrace_outbox_layout (
  id         INT NOT NULL PRIMARY KEY,
  generation INT NOT NULL,
  shards     INT NOT NULL,
  target     INT NOT NULL
) ENGINE = InnoDB;

-- Which relay works on which shard of a generation of the layout.
CREATE TABLE IF NOT EXISTS millrace_outbox_shards (
  generation INT    NOT NULL,
  shard      INT    NOT NULL,
  owner      BIGINT NOT NULL, -- token of the relay; 0 for none
  PRIMARY KEY (generation, shard)
) ENGINE = InnoDB;
