CREATE TABLE IF NOT EXISTS orders (
	id              BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	idempotency_key TEXT    NOT NULL UNIQUE,
	item            INTEGER NOT NULL,
	quantity        INTEGER NOT NULL,
	status          TEXT    NOT NULL DEFAULT 'placed' -- then 'invoiced' or 'rejected'
);

-- Without a key on purpose: an invoice that is recorded twice would show.
CREATE TABLE IF NOT EXISTS invoice_received (order_id BIGINT NOT NULL, amount INTEGER NOT NULL);
