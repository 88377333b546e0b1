-- order_hash is key_hash for unsent messages that have an order key, and NULL for all others. by_order serves
-- SelectPending, SelectKey, ListKeys and CountBacklog: the unsent messages of each key, in their order.
-- Two statements, because one would copy the table.
ALTER TABLE millrace_outbox
  ADD COLUMN order_hash BIGINT GENERATED ALWAYS AS (
    CASE WHEN order_key IS NOT NULL AND (status IN (0, 2) OR blocked_key IS NOT NULL) THEN key_hash END) VIRTUAL;

ALTER TABLE millrace_outbox ADD KEY by_order (order_hash, id);
