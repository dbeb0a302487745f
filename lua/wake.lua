-- wake: gates whose time has come -> their waiters to ready; grants that nobody claimed -> the next waiter.
--
-- Replies  { timers served, ms until the next or '' }
local tag          = KEYS[1]             -- hash tag of the shard
local clock        = ARGV[1]             -- ms, or '' for Redis TIME
local worker       = ARGV[2]             -- the keeper
local retention_ms = ARGV[3]             -- how long a finished record stays
local limit        = ARGV[4]             -- timers at most
local script, actor = 'wake', worker
-- include: fragments/base.lua
-- include: fragments/record.lua
-- include: fragments/transition.lua
-- include: fragments/make_ready.lua
-- include: fragments/gates.lua
-- include: fragments/turnstile.lua
-- include: fragments/commit.lua
local served = open_gates().wake(limit)
if served > 0 then commit() end
local nearest = redis.call('ZRANGE', tag .. ':timers', 0, 0, 'WITHSCORES')[2]
if not nearest or nearest == 'inf' then return { served, '' } end
return { served, format('%d', math.max(0, tonumber(nearest) - now)) }
