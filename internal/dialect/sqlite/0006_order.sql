-- Serves SelectPending, SelectKey, ListKeys and CountBacklog: the unsent messages of each key, in their order.
CREATE INDEX ix_millrace_outbox_order ON millrace_outbox (key_hash, id)
  WHERE order_key IS NOT NULL AND (status IN (0, 2) OR blocked_key IS NOT NULL);
