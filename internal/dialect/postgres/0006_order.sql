-- Serves SelectPending, SelectKey, ListKeys and CountBacklog: the unsent messages of each key, in their
-- order. If somebody built it beforehand, CONCURRENTLY, the migration does not lock the table. CREATE INDEX
-- IF NOT EXISTS would wait for a lock first: a deadlock while the index is still being built.
DO $$
DECLARE made BOOLEAN := (SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
  WHERE i.indrelid = 'millrace_outbox'::REGCLASS AND c.relname = 'ix_millrace_outbox_order'); BEGIN
  IF NOT made THEN
    RAISE EXCEPTION 'the index ix_millrace_outbox_order is not valid: wait where it is still being made, else DROP INDEX CONCURRENTLY'
      USING ERRCODE = 'object_not_in_prerequisite_state'; END IF; IF made IS NULL THEN
    CREATE INDEX ix_millrace_outbox_order ON millrace_outbox (key_hash, id)
      WHERE order_key IS NOT NULL AND (status IN (0, 2) OR blocked_key IS NOT NULL); END IF; END $$;
