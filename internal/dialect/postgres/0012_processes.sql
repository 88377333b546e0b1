-- Stores whose background work runs. The key serves BeatProcess, LeaveProcess and SelectProcesses.
CREATE TABLE millrace_processes (
  token      BIGINT  NOT NULL, -- of the Store
  started_at BIGINT  NOT NULL,
  seen_at    BIGINT  NOT NULL,
  pid        BIGINT  NOT NULL,
  consumers  INTEGER NOT NULL, -- how many it serves
  namespace  BYTEA   NOT NULL,
  name       BYTEA   NOT NULL,
  host       BYTEA   NOT NULL,
  program    BYTEA   NOT NULL, -- the path of its main package
  version    BYTEA   NOT NULL, -- of the program
  millrace   BYTEA   NOT NULL, -- version of this library
  serves     BYTEA   NOT NULL, -- the consumers in JSON; not all if they are very many
  PRIMARY KEY (namespace, name, token)
);

CREATE OR REPLACE VIEW millrace_v_processes AS
  SELECT
    millrace_text(t.namespace) AS namespace,
    millrace_text(t.name) AS name,
    millrace_text(t.host) AS host,
    t.pid,
    millrace_text(t.program) AS program,
    millrace_text(t.version) AS version,
    millrace_text(t.millrace) AS millrace,
    t.consumers,
    millrace_text(t.serves) AS serves,
    millrace_time(t.started_at) AS started_at,
    millrace_time(t.seen_at) AS seen_at
  FROM millrace_processes t;
