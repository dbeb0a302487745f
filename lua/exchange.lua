-- exchange: settle what ended, then claim for the free slots, in one call: `settle` and `claim` fused.
--
-- Replies  { OK | NOSESSION, { head, id, envelope, ... }, { one per settle row } }
local tag          = KEYS[1]             -- hash tag of the shard
local clock        = ARGV[1]             -- ms, or '' for Redis TIME
local worker       = ARGV[2]             -- worker id: the consumer name
local session      = ARGV[3]             -- of the connection that asks (D5)
local lease_ms     = ARGV[4]             -- how long the claims live without a heartbeat
local retention_ms = ARGV[5]             -- how long a finished record stays
local limit        = ARGV[6]             -- claims at most; 0 claims nothing
local shared       = ARGV[7]             -- free shared slots
local offers       = ARGV[8]             -- lines: lane kind entry
local plan         = ARGV[9]             -- lines: lane reserved quota phase
local calls        = ARGV[10]            -- lines: gate ok errors timeouts, of dependencies that were called
-- rows: head id [first [second]], see fragments/settle_step.lua
local script, actor = 'exchange', worker
-- include: fragments/base.lua

-- Functions within a function find what stands outside of it as it was handed in. A variable of the function
-- that runs is looked for, each time it is shared, in a list of all that are: with all in one function, that
-- and what it leaves behind were a tenth of a call with one job.
local function exchange()
-- include: fragments/record.lua
-- include: fragments/transition.lua
-- include: fragments/ordinary.lua
-- include: fragments/make_ready.lua
-- include: fragments/gates.lua
-- include: fragments/turnstile.lua
-- include: fragments/finish.lua
-- include: fragments/commit.lua
-- include: fragments/give_back.lua

  local function settle()
-- include: fragments/settle_step.lua
    return settle_rows(11)
  end

  local function claim()
-- include: fragments/claim_step.lua
    local verdict = claim_jobs()
    return verdict, claims, fence
  end

  if calls ~= '' then open_gates().breakers().report(calls) end
  local replies = settle()
  local verdict, claims, fence = claim()
  commit(fence)
  return { verdict, claims, replies }
end

return exchange()
