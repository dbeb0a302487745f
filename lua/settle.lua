-- settle: start marks and outcomes of claims, checked on status and fence.
--
-- Replies, one per row:  OK | OK burial | ALREADY <outcome> | STALE | GONE
-- Owner: the worker that holds the claim, or the keeper for what it found dead.
local tag          = KEYS[1]             -- hash tag of the shard
local clock        = ARGV[1]             -- ms, or '' for Redis TIME
local actor        = ARGV[2]             -- worker id, for the log
local lease_ms     = ARGV[3]             -- what a start mark extends the lease by
local retention_ms = ARGV[4]             -- how long a finished record stays
-- rows: head id [first [second]], see fragments/settle_step.lua
local script = 'settle'
-- include: fragments/base.lua
-- include: fragments/record.lua
-- include: fragments/transition.lua
-- include: fragments/ordinary.lua
-- include: fragments/make_ready.lua
-- include: fragments/gates.lua
-- include: fragments/turnstile.lua
-- include: fragments/finish.lua
-- include: fragments/settle_step.lua
-- include: fragments/commit.lua
local replies = settle_rows(5)
commit()
return replies
