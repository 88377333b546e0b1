-- Completed messages, whole, of consumers that keep a journal; each lives as long as its claim.
-- SelectJournal and CountJournal walk the primary key: the order of processing.
CREATE TABLE millrace_journal (
  id            INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  consumer      INTEGER NOT NULL,
  message_id    BLOB NOT NULL,
  received_at   INTEGER NOT NULL,
  processed_at  INTEGER NOT NULL,
  topic         BLOB NOT NULL,
  order_key     BLOB, -- of a queue that had it
  event_type    BLOB,
  event_version BLOB,
  uuid          BLOB NOT NULL,
  metadata      BLOB NOT NULL,
  payload       BLOB NOT NULL,
  payload_hash  INTEGER NOT NULL,
  payload_form  INTEGER NOT NULL DEFAULT 0, -- 1: sealed, 2: erased before it was stored
  payload_ref   BLOB -- of a payload that is kept elsewhere
);

-- Serves InsertJournal, DeleteJournal and StoryJournal.
CREATE UNIQUE INDEX ix_millrace_journal_key ON millrace_journal (consumer, message_id);

-- Serves SelectReferred.
CREATE INDEX ix_millrace_journal_blob ON millrace_journal (payload_ref) WHERE payload_ref IS NOT NULL;

-- What was sent again on purpose, and how far it is.
CREATE TABLE millrace_replays (
  id            INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  namespace     BLOB NOT NULL,
  name          BLOB NOT NULL,
  source        BLOB NOT NULL,
  spec          BLOB NOT NULL, -- what is replayed, and where to: JSON
  reached       INTEGER NOT NULL, -- the id up to which the source was read
  last_id       INTEGER NOT NULL, -- the greatest id of the source when it began
  sent          INTEGER NOT NULL,
  skipped       INTEGER NOT NULL, -- that could not be had
  state         INTEGER NOT NULL, -- 1 running, 2 done, 3 cancelled
  actor         BLOB NOT NULL,
  reason        BLOB NOT NULL,
  started_at    INTEGER NOT NULL,
  moved_at      INTEGER NOT NULL,
  finished_at   INTEGER
);

-- Serves InsertReplay and SelectReplay.
CREATE UNIQUE INDEX ix_millrace_replays_name ON millrace_replays (namespace, name);
