-- by_blocked serves SelectHeld, SelectBlocks and ListBlocks: by the key alone, each would pass over all
-- that is held back of a key to find its head. The release before names the index in a statement.
ALTER TABLE millrace_outbox
  DROP KEY by_blocked,
  ADD KEY by_blocked (blocked_key, status, id);
