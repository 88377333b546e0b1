-- A queue finds its deliverable messages in these indexes. Messages that are held or wait for an operator can be many,
-- and are not in them. ix_millrace_messages_due and ix_millrace_messages_order serve the release before, which runs
-- beside this one during an upgrade.

-- Serve SelectNextDue, SelectDue, SelectFront and CountDue: messages without an order key, and with one.
CREATE INDEX ix_millrace_messages_free ON millrace_messages (consumer, due_at)
  WHERE order_key IS NULL AND status IN (1, 2, 3, 4);

CREATE INDEX ix_millrace_messages_lined ON millrace_messages (consumer, due_at)
  WHERE order_key IS NOT NULL AND status IN (1, 2, 3, 4);

-- Serves SelectFront and SelectHeads: the messages of each order key, in their order.
CREATE INDEX ix_millrace_messages_line ON millrace_messages (consumer, order_key, id)
  WHERE order_key IS NOT NULL AND status IN (1, 2, 3, 4);

-- Serves SelectFront and SelectHeads: messages with an order key that wait for an operator.
CREATE INDEX ix_millrace_messages_stuck ON millrace_messages (consumer, order_key, id)
  WHERE order_key IS NOT NULL AND status IN (5, 6);

-- Serves SelectHeldAges from the index alone: in a row, the payload precedes due_at.
CREATE INDEX ix_millrace_messages_ages ON millrace_messages (consumer, id, due_at) WHERE status = 7;
