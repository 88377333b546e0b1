-- What is to be published, in the order of id. Readable by people, and by Debezium's
-- outbox event router: topic, order_key, uuid, event_type, metadata and payload.
CREATE TABLE millrace_outbox (
  id          INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, -- never used twice
  key_hash    INTEGER NOT NULL, -- of order_key, else of uuid
  created_at  INTEGER NOT NULL,
  due_at      INTEGER NOT NULL DEFAULT 0, -- of a failed message: when to try again; of a sent one: when to delete
  sent_at     INTEGER,
  blocked_key INTEGER, -- key_hash, where the messages of the key wait for this one or it waits for another
  attempts    INTEGER NOT NULL DEFAULT 0,
  status      INTEGER NOT NULL DEFAULT 0, -- 0 pending, 1 to be tried again, 2 held behind another, 3 parked, 4 sent
  topic       TEXT    NOT NULL,
  order_key   TEXT,
  uuid        TEXT    NOT NULL,
  event_type  TEXT,
  metadata    TEXT, -- a JSON object
  payload     BLOB,
  last_error  TEXT,
  cause       TEXT -- the consumer and the key of the message whose handler stored it: consumer/key
);

-- Serves SelectPending, SelectDue, PurgeSent and CountBacklog.
CREATE INDEX ix_millrace_outbox_status ON millrace_outbox (status, due_at, id);

-- Serves SelectBlocked, SelectOrphans and ReleaseHeld.
CREATE INDEX ix_millrace_outbox_blocked ON millrace_outbox (blocked_key) WHERE blocked_key IS NOT NULL;

-- One row per running relay.
CREATE TABLE millrace_outbox_relays (
  token      INTEGER NOT NULL PRIMARY KEY,
  name       TEXT    NOT NULL,
  started_at INTEGER NOT NULL,
  until      INTEGER NOT NULL -- end of its lease
);

-- One row: into how many shards the keys are divided, and into how many they are to be.
CREATE TABLE millrace_outbox_layout (
  id         INTEGER NOT NULL PRIMARY KEY,
  generation INTEGER NOT NULL,
  shards     INTEGER NOT NULL,
  target     INTEGER NOT NULL
);

-- Which relay works on which shard of a generation of the layout.
CREATE TABLE millrace_outbox_shards (
  generation INTEGER NOT NULL,
  shard      INTEGER NOT NULL,
  owner      INTEGER NOT NULL, -- token of the relay; 0 for none
  PRIMARY KEY (generation, shard)
) WITHOUT ROWID;
