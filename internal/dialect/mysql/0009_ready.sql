-- place divides the messages for the queue. 0: deliverable, without an order key. 1: deliverable, with an order key.
-- 2: waits for an operator, with an order key. 3: held. NULL: all others. So a queue reads only deliverable messages,
-- however many are held or wait for an operator. by_due, by_order and by_aggregate serve the release before, which
-- runs beside this one during an upgrade.
-- by_ready serves SelectNextDue, SelectDue, SelectFront and CountDue, by_line serves SelectFront and SelectHeads.
-- by_held serves ReleaseHeld, CountHeld and SelectWaiting.
-- Two statements, because one would copy the table.
ALTER TABLE millrace_messages
  ADD COLUMN place SMALLINT GENERATED ALWAYS AS (CASE
    WHEN status IN (1, 2, 3, 4) THEN CASE WHEN order_key IS NULL THEN 0 ELSE 1 END
    WHEN status = 7 THEN 3
    WHEN order_key IS NOT NULL THEN 2 END) VIRTUAL;

ALTER TABLE millrace_messages
  ADD KEY by_ready (consumer, place, due_at),
  ADD KEY by_line (consumer, order_key, place, id),
  ADD KEY by_held (consumer, place, aggregate, version);
