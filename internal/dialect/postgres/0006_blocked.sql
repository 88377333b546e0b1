-- Serves SelectHeld, SelectBlocks and ListBlocks: by the key alone, each would pass over all that is
-- held back of a key to find its head. Where somebody made it beforehand, CONCURRENTLY, the table is not
-- locked: CREATE INDEX IF NOT EXISTS would wait for a lock first.
DO $$ BEGIN
  IF TO_REGCLASS('ix_millrace_outbox_aside') IS NULL THEN
    CREATE INDEX ix_millrace_outbox_aside ON millrace_outbox (blocked_key, status, id)
      WHERE blocked_key IS NOT NULL; END IF; END $$;

DROP INDEX IF EXISTS ix_millrace_outbox_blocked;
