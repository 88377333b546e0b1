-- The looks of a queue find the messages that are to be delivered in these indexes, and no others: what is held, or
-- waits for an operator, may be any number, and is not met. ix_millrace_messages_due and ix_millrace_messages_order
-- serve the release before, which runs beside this one during an upgrade.

-- Serves SelectNextDue, SelectDue, SelectFront and CountDue: messages that stand in no line, and those that do.
CREATE INDEX ix_millrace_messages_free ON millrace_messages (consumer, due_at)
  WHERE order_key IS NULL AND status NOT IN (5, 6, 7);

CREATE INDEX ix_millrace_messages_lined ON millrace_messages (consumer, due_at)
  WHERE order_key IS NOT NULL AND status NOT IN (5, 6, 7);

-- Serves SelectFront and SelectHeads: the line of each order key, in its order.
CREATE INDEX ix_millrace_messages_line ON millrace_messages (consumer, order_key, id)
  WHERE order_key IS NOT NULL AND status NOT IN (5, 6, 7);

-- Serves SelectFront and SelectHeads: what stands in a line and waits for an operator.
CREATE INDEX ix_millrace_messages_stuck ON millrace_messages (consumer, order_key, id)
  WHERE order_key IS NOT NULL AND status IN (5, 6);
