-- claim: queued | retry_scheduled -> claimed, for the free slots of one worker.
--
-- Replies  { OK | NOSESSION, { head, id, envelope, ... } }
local tag          = KEYS[1]             -- hash tag of the shard
local clock        = ARGV[1]             -- ms, or '' for Redis TIME
local worker       = ARGV[2]             -- worker id: the consumer name
local session      = ARGV[3]             -- of the connection that asks (D5)
local lease_ms     = ARGV[4]             -- how long the claims live without a heartbeat
local retention_ms = ARGV[5]             -- how long a finished record stays
local limit        = ARGV[6]             -- claims at most
local shared       = ARGV[7]             -- free shared slots
local offers       = ARGV[8]             -- lines: lane kind entry
local plan         = ARGV[9]             -- lines: lane reserved quota phase
local script, actor = 'claim', worker
-- include: fragments/base.lua
-- include: fragments/record.lua
-- include: fragments/transition.lua
-- include: fragments/ordinary.lua
-- include: fragments/make_ready.lua
-- include: fragments/gates.lua
-- include: fragments/turnstile.lua
-- include: fragments/finish.lua
-- include: fragments/commit.lua
-- include: fragments/give_back.lua
-- include: fragments/claim_step.lua
local verdict = claim_jobs()
commit(fence)
return { verdict, claims }
