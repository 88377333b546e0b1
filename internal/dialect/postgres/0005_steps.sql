-- Steps of handlers outside of the transaction: what inbox.Once intends, and what came of it.
CREATE TABLE millrace_steps (
  token      BIGINT   NOT NULL, -- of the attempt that has it, or had it last
  until      BIGINT   NOT NULL, -- end of the lease, or of the time the step is remembered
  started_at BIGINT   NOT NULL,
  ended_at   BIGINT   NOT NULL DEFAULT 0, -- of the last attempt, 0: it gave no answer
  epoch      INTEGER  NOT NULL, -- of the last attempt
  attempts   INTEGER  NOT NULL DEFAULT 1,
  state      SMALLINT NOT NULL, -- 1: begun, in doubt once the lease has ended, 2: done, 3: not done
  verified   SMALLINT NOT NULL DEFAULT 0, -- 1: that it is done was found out afterwards
  id         BYTEA    NOT NULL, -- made of the four that follow
  namespace  BYTEA    NOT NULL,
  consumer   BYTEA    NOT NULL,
  message_id BYTEA    NOT NULL,
  name       BYTEA    NOT NULL,
  result     BYTEA,
  problem    BYTEA, -- the last error, or why a step that is done has no result
  PRIMARY KEY (id)
);

-- Serves StorySteps.
CREATE INDEX ix_millrace_steps_message ON millrace_steps (message_id);

-- Serves SelectDoubtful and SelectExpired.
CREATE INDEX ix_millrace_steps_until ON millrace_steps (state, until);
