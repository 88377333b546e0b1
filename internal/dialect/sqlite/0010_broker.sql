-- Both are NULL unless the relay gets nothing through to the broker: the last error, and since when.
ALTER TABLE millrace_outbox_relays ADD COLUMN broker_error TEXT;

ALTER TABLE millrace_outbox_relays ADD COLUMN broker_out_since INTEGER;
