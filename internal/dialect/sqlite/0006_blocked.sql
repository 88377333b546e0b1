-- Serves SelectHeld, SelectBlocks and ListBlocks: by the key alone, each would pass over all that is
-- held back of a key to find its head.
CREATE INDEX ix_millrace_outbox_aside ON millrace_outbox (blocked_key, status, id) WHERE blocked_key IS NOT NULL;

DROP INDEX ix_millrace_outbox_blocked;
