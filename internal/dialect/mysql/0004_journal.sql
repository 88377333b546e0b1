-- Completed messages, whole, of consumers that keep a journal; each lives as long as its claim.
-- by_key serves InsertJournal, DeleteJournal and StoryJournal, by_blob serves SelectReferred. SelectJournal and CountJournal
-- walk the primary key: the order of processing.
CREATE TABLE IF NOT EXISTS millrace_journal (
  id            BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  consumer      INT NOT NULL,
  message_id    VARBINARY(128) NOT NULL,
  received_at   BIGINT NOT NULL,
  processed_at  BIGINT NOT NULL,
  topic         BLOB NOT NULL,
  order_key     VARBINARY(128), -- of a queue that had it
  event_type    BLOB,
  event_version BLOB,
  uuid          BLOB NOT NULL,
  metadata      LONGBLOB NOT NULL,
  payload       LONGBLOB NOT NULL,
  payload_hash  BIGINT NOT NULL,
  payload_form  SMALLINT NOT NULL DEFAULT 0, -- 1: sealed, 2: erased before it was stored
  payload_ref   VARBINARY(16), -- of a payload that is kept elsewhere
  UNIQUE KEY by_key (consumer, message_id),
  KEY by_blob (payload_ref)
) ENGINE = InnoDB;

-- What was sent again on purpose, and how far it is.
-- by_name serves InsertReplay and SelectReplay.
CREATE TABLE IF NOT EXISTS millrace_replays (
  id            BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  namespace     VARBINARY(255) NOT NULL,
  name          VARBINARY(255) NOT NULL,
  source        BLOB NOT NULL,
  spec          LONGBLOB NOT NULL, -- what is replayed, and where to: JSON
  reached       BIGINT NOT NULL, -- the id up to which the source was read
  last_id       BIGINT NOT NULL, -- the greatest id of the source when it began
  sent          BIGINT NOT NULL,
  skipped       BIGINT NOT NULL, -- that could not be had
  state         SMALLINT NOT NULL, -- 1 running, 2 done, 3 cancelled
  actor         BLOB NOT NULL,
  reason        BLOB NOT NULL,
  started_at    BIGINT NOT NULL,
  moved_at      BIGINT NOT NULL,
  finished_at   BIGINT,
  UNIQUE KEY by_name (namespace, name)
) ENGINE = InnoDB;
