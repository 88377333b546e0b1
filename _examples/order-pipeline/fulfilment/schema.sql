CREATE TABLE IF NOT EXISTS stock (
	item      INTEGER PRIMARY KEY,
	price     INTEGER NOT NULL,
	available INTEGER NOT NULL CHECK (available >= 0),
	reserved  INTEGER NOT NULL DEFAULT 0
);

-- 20 items, 40 of each: not enough for everybody.
INSERT INTO stock (item, price, available) SELECT item, 100 + 7 * item, 40 FROM generate_series(1, 20) AS item
ON CONFLICT DO NOTHING;

-- Without keys on purpose: an order that is handled twice would show.
CREATE TABLE IF NOT EXISTS reservation (order_id BIGINT NOT NULL, quantity INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS rejection   (order_id BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS invoice     (order_id BIGINT NOT NULL, amount INTEGER NOT NULL);
