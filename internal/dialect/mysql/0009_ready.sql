-- place says who looks for a message: 0, it is to be delivered and stands in no line, 1, in the line of its order key,
-- 2, it stands in a line and waits for an operator, 3, it is held, and NULL for all others. What is held, or waits for
-- an operator, may be any number, and the looks of a queue do not meet it. by_due, by_order and by_aggregate serve
-- the release before, which runs beside this one during an upgrade.
-- by_ready serves SelectNextDue, SelectDue, SelectFront and CountDue, by_line serves SelectFront and SelectHeads.
-- by_held serves ReleaseHeld, CountHeld and SelectWaiting.
-- Two statements: together they would copy the table.
ALTER TABLE millrace_messages
  ADD COLUMN place SMALLINT GENERATED ALWAYS AS (CASE
    WHEN status IN (1, 2, 3, 4) THEN CASE WHEN order_key IS NULL THEN 0 ELSE 1 END
    WHEN status = 7 THEN 3
    WHEN order_key IS NOT NULL THEN 2 END) VIRTUAL;

ALTER TABLE millrace_messages
  ADD KEY by_ready (consumer, place, due_at),
  ADD KEY by_line (consumer, order_key, place, id),
  ADD KEY by_held (consumer, place, aggregate, version);
