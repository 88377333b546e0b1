-- Stores whose background work runs. The key serves BeatProcess, LeaveProcess and SelectProcesses.
CREATE TABLE IF NOT EXISTS millrace_processes (
  token      BIGINT         NOT NULL, -- of the Store
  started_at BIGINT         NOT NULL,
  seen_at    BIGINT         NOT NULL,
  pid        BIGINT         NOT NULL,
  consumers  INT            NOT NULL, -- how many it serves
  namespace  VARBINARY(255) NOT NULL,
  name       VARBINARY(255) NOT NULL,
  host       VARBINARY(255) NOT NULL,
  program    VARBINARY(255) NOT NULL, -- the path of its main package
  version    VARBINARY(255) NOT NULL, -- of the program
  millrace   VARBINARY(255) NOT NULL, -- version of this library
  serves     MEDIUMBLOB     NOT NULL, -- the consumers in JSON; not all if they are very many
  PRIMARY KEY (namespace, name, token)
) ENGINE = InnoDB;

CREATE OR REPLACE VIEW millrace_v_processes AS
  SELECT
    CASE WHEN CAST(CONVERT(t.namespace USING utf8mb4) AS BINARY) = t.namespace
      THEN CONVERT(t.namespace USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.namespace)) END AS namespace,
    CASE WHEN CAST(CONVERT(t.name USING utf8mb4) AS BINARY) = t.name
      THEN CONVERT(t.name USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.name)) END AS name,
    CASE WHEN CAST(CONVERT(t.host USING utf8mb4) AS BINARY) = t.host
      THEN CONVERT(t.host USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.host)) END AS host,
    t.pid,
    CASE WHEN CAST(CONVERT(t.program USING utf8mb4) AS BINARY) = t.program
      THEN CONVERT(t.program USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.program)) END AS program,
    CASE WHEN CAST(CONVERT(t.version USING utf8mb4) AS BINARY) = t.version
      THEN CONVERT(t.version USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.version)) END AS version,
    CASE WHEN CAST(CONVERT(t.millrace USING utf8mb4) AS BINARY) = t.millrace
      THEN CONVERT(t.millrace USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.millrace)) END AS millrace,
    t.consumers,
    CASE WHEN CAST(CONVERT(t.serves USING utf8mb4) AS BINARY) = t.serves
      THEN CONVERT(t.serves USING utf8mb4) COLLATE utf8mb4_bin ELSE CONCAT('0x', HEX(t.serves)) END AS serves,
    CASE WHEN t.started_at BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.started_at MICROSECOND END AS started_at,
    CASE WHEN t.seen_at BETWEEN 1 AND 253402300799999999
      THEN TIMESTAMP '1970-01-01 00:00:00' + INTERVAL t.seen_at MICROSECOND END AS seen_at
  FROM millrace_processes t;
