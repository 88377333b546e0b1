-- Steps of handlers outside of the transaction: what inbox.Once intends, and what came of it.
CREATE TABLE millrace_steps (
  id         BLOB    NOT NULL PRIMARY KEY, -- made of the four that follow
  namespace  BLOB    NOT NULL,
  consumer   BLOB    NOT NULL,
  message_id BLOB    NOT NULL,
  name       BLOB    NOT NULL,
  epoch      INTEGER NOT NULL, -- of the last attempt
  state      INTEGER NOT NULL, -- 1: begun, in doubt once the lease has ended, 2: done, 3: not done
  verified   INTEGER NOT NULL DEFAULT 0, -- 1: that it is done was found out afterwards
  token      INTEGER NOT NULL, -- of the attempt that has it, or had it last
  until      INTEGER NOT NULL, -- end of the lease, or of the time the step is remembered
  attempts   INTEGER NOT NULL DEFAULT 1,
  started_at INTEGER NOT NULL,
  ended_at   INTEGER NOT NULL DEFAULT 0, -- of the last attempt, 0: it gave no answer
  result     BLOB,
  problem    BLOB -- the last error, or why a step that is done has no result
);

-- Serves StorySteps.
CREATE INDEX ix_millrace_steps_message ON millrace_steps (message_id);

-- Serves SelectDoubtful and SelectExpired.
CREATE INDEX ix_millrace_steps_until ON millrace_steps (state, until);
