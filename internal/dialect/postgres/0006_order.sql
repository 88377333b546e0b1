-- Serves SelectPending, SelectKey, ListKeys and CountBacklog: the unsent messages of each key, in their
-- order. Where somebody made it beforehand, CONCURRENTLY, the table is not locked: CREATE INDEX IF NOT
-- EXISTS would wait for a lock first.
DO $$ BEGIN
  IF NOT EXISTS (SELECT 1 FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
      WHERE i.indrelid = 'millrace_outbox'::REGCLASS AND i.indisvalid AND c.relname = 'ix_millrace_outbox_order') THEN
    CREATE INDEX ix_millrace_outbox_order ON millrace_outbox (key_hash, id)
      WHERE order_key IS NOT NULL AND (status IN (0, 2) OR blocked_key IS NOT NULL); END IF; END $$;
