-- Steps of handlers outside of the transaction: what inbox.Once intends, and what came of it.
-- by_message serves StorySteps, by_until serves SelectDoubtful and SelectExpired.
CREATE TABLE IF NOT EXISTS millrace_steps (
  id         VARBINARY(16)  NOT NULL PRIMARY KEY, -- made of the four that follow
  namespace  VARBINARY(255) NOT NULL,
  consumer   VARBINARY(255) NOT NULL,
  message_id VARBINARY(128) NOT NULL,
  name       VARBINARY(255) NOT NULL,
  epoch      INT            NOT NULL, -- of the last attempt
  state      SMALLINT       NOT NULL, -- 1: begun, in doubt once the lease has ended, 2: done, 3: not done
  verified   SMALLINT       NOT NULL DEFAULT 0, -- 1: that it is done was found out afterwards
  token      BIGINT         NOT NULL, -- of the attempt that has it, or had it last
  until      BIGINT         NOT NULL, -- end of the lease, or of the time the step is remembered
  attempts   INT            NOT NULL DEFAULT 1,
  started_at BIGINT         NOT NULL,
  ended_at   BIGINT         NOT NULL DEFAULT 0, -- of the last attempt, 0: it gave no answer
  result     LONGBLOB,
  problem    BLOB, -- the last error, or why a step that is done has no result
  KEY by_message (message_id),
  KEY by_until (state, until)
) ENGINE = InnoDB;
