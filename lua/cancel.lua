-- cancel: queued | retry_scheduled -> failed_terminal at once; a held job is flagged (D9), and so is one whose
-- effect may be committed (D14).
--
-- Replies, one per row:  OK (it is cancelled) | FLAGGED | ALREADY <status> | GONE
local tag          = KEYS[1]             -- hash tag of the shard
local clock        = ARGV[1]             -- ms, or '' for Redis TIME
local actor        = ARGV[2]             -- who asks, for the log
local retention_ms = ARGV[3]             -- how long a finished record stays
-- rows: id epoch
local script = 'cancel'
-- include: fragments/base.lua
-- include: fragments/record.lua
-- include: fragments/transition.lua
-- include: fragments/make_ready.lua
-- include: fragments/gates.lua
-- include: fragments/turnstile.lua
-- include: fragments/finish.lua
-- include: fragments/commit.lua
local replies, changed = {}, false
for i = 4, #ARGV, 2 do
  local rec, epoch = load(ARGV[i]), ARGV[i + 1]
  local reply
  if not rec or rec.bad then
    reply = 'GONE'
  elseif epoch ~= '-' and rec.epoch ~= tonumber(epoch) then
    reply = 'ALREADY ' .. rec.status
  elseif WAITING[rec.status] then
    fail(rec, 'cancelled', 'persistent', 'cancelled', '', '', 'own')
    changed = true
    reply = WAITING[rec.status] and 'FLAGGED' or 'OK'      -- its effect is looked for first (D14)
  elseif HELD[rec.status] then
    if (rec.cx or '') == '' then
      put(rec, 'cx', 'cancelled')
      audit[#audit + 1] = rec.id .. ' ' .. text_of[rec.epoch] .. ' cancel_requested'
      changed = true
    end
    reply = 'FLAGGED'
  elseif rec.status == 'failed_terminal' and rec.ec == 'persistent cancelled' then
    reply = 'OK'                         -- also for the same call sent again
  else
    reply = 'ALREADY ' .. rec.status
  end
  replies[#replies + 1] = reply
end
if changed then commit() end
return replies
