-- Stores whose background work runs. The key serves BeatProcess, LeaveProcess and SelectProcesses.
CREATE TABLE millrace_processes (
  token      INTEGER NOT NULL, -- of the Store
  started_at INTEGER NOT NULL,
  seen_at    INTEGER NOT NULL,
  pid        INTEGER NOT NULL,
  consumers  INTEGER NOT NULL, -- how many it serves
  namespace  BLOB    NOT NULL,
  name       BLOB    NOT NULL,
  host       BLOB    NOT NULL,
  program    BLOB    NOT NULL, -- the path of its main package
  version    BLOB    NOT NULL, -- of the program
  millrace   BLOB    NOT NULL, -- version of this library
  serves     BLOB    NOT NULL, -- the consumers in JSON; not all if they are very many
  PRIMARY KEY (namespace, name, token)
) WITHOUT ROWID;

DROP VIEW IF EXISTS millrace_v_processes;

CREATE VIEW millrace_v_processes AS
  SELECT
    CAST(t.namespace AS TEXT) AS namespace,
    CAST(t.name AS TEXT) AS name,
    CAST(t.host AS TEXT) AS host,
    t.pid,
    CAST(t.program AS TEXT) AS program,
    CAST(t.version AS TEXT) AS version,
    CAST(t.millrace AS TEXT) AS millrace,
    t.consumers,
    CAST(t.serves AS TEXT) AS serves,
    CASE WHEN t.started_at BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.started_at / 1000000, 'unixepoch') || PRINTF('.%06d', t.started_at % 1000000) END AS started_at,
    CASE WHEN t.seen_at BETWEEN 1 AND 253402300799999999
      THEN STRFTIME('%Y-%m-%d %H:%M:%S', t.seen_at / 1000000, 'unixepoch') || PRINTF('.%06d', t.seen_at % 1000000) END AS seen_at
  FROM millrace_processes t;
