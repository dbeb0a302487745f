-- purge: jobs of one lane that nobody has -> failed_terminal, reason `purged`. What runs is not touched.
--
-- One whose effect may be committed is flagged: a worker looks first, and ends it then (D14).
-- Replies, one per row:  OK | FLAGGED | MOVED | GONE
local tag          = KEYS[1]             -- hash tag of the shard
local clock        = ARGV[1]             -- ms, or '' for Redis TIME
local actor        = ARGV[2]             -- who asks, for the log
local retention_ms = ARGV[3]             -- how long a finished record stays
local lane         = ARGV[4]             -- whose jobs
local places       = ARGV[5]             -- where they may wait: first letters of the record's entry
local why          = ARGV[6]             -- kept as the error text
-- rows: id epoch
local script = 'purge'
-- include: fragments/base.lua
-- include: fragments/record.lua
-- include: fragments/transition.lua
-- include: fragments/make_ready.lua
-- include: fragments/gates.lua
-- include: fragments/turnstile.lua
-- include: fragments/finish.lua
-- include: fragments/commit.lua
local function is_meant(rec, epoch)
  return WAITING[rec.status] and rec.la == lane and rec.epoch == tonumber(epoch)
    and string.find(places, sub(rec.en, 1, 1), 1, true)
end

local replies, changed = {}, false
for i = 7, #ARGV, 2 do
  local rec, epoch = load(ARGV[i]), ARGV[i + 1]
  local reply = 'MOVED'
  if not rec or rec.bad then
    reply = 'GONE'
  elseif is_meant(rec, epoch) then
    fail(rec, 'purged', 'persistent', 'cancelled', why, '', 'own')
    changed = true
    reply = WAITING[rec.status] and 'FLAGGED' or 'OK'
  elseif rec.status == 'failed_terminal' and rec.ec == 'persistent cancelled' then
    reply = 'OK'                         -- also for the same call sent again
  end
  replies[#replies + 1] = reply
end
if changed then commit() end
return replies
