-- promote: due jobs -> ready; jobs past their deadline -> failed_terminal, or flagged where held (D9).
--
-- Adds before it removes (R31). A due id that is not waiting is dropped from the schedule. Stops early when
-- it has moved much payload. More than MASS jobs that are late by LATE_MS were left behind by an outage: they
-- come back by a ramp, `sweep` field `overdue`: until, how many, how long.
-- Replies  { promoted, expired, due time of the next in ms or '', 1 if more may come now else 0 }
local tag          = KEYS[1]             -- hash tag of the shard
local clock        = ARGV[1]             -- ms, or '' for Redis TIME
local worker       = ARGV[2]             -- the keeper
local retention_ms = ARGV[3]             -- how long a finished record stays
local limit        = ARGV[4]             -- at most 500 (R32)
local script, actor = 'promote', worker
-- include: fragments/base.lua
-- include: fragments/record.lua
-- include: fragments/transition.lua
-- include: fragments/make_ready.lua
-- include: fragments/gates.lua
-- include: fragments/turnstile.lua
-- include: fragments/finish.lua
-- include: fragments/commit.lua
local MOST_BYTES = 524288                -- of envelopes in one call: to move 25 MB took 200 ms (R46)
local LATE_MS, MASS, RAMP_MS = 10000, 1000, 60000
local promoted, expired, stale = 0, 0, {}
local moved, more = 0, 0
local upto = format('%d', now)

local overdue = redis.call('ZRANGEBYSCORE', DEADLINES, '-inf', upto, 'LIMIT', 0, limit)
local stale_deadlines = {}
for i = 1, #overdue do
  if moved >= MOST_BYTES then break end
  local rec = load(overdue[i])
  if rec and not rec.bad and WAITING[rec.status] then
    local env = envelope(rec) or ''
    moved = moved + #env
    fail(rec, 'expired', 'persistent', 'expired', '', env, 'own')
    expired = expired + 1
  else                                   -- one that cannot be read is buried where its envelope is
    if rec and not rec.bad and HELD[rec.status] and (rec.cx or '') == '' then put(rec, 'cx', 'expired') end
    stale_deadlines[#stale_deadlines + 1] = overdue[i]
  end
end

local ramp                               -- to be noted; '' when one is over

local function share()                   -- how many due jobs may come back now
  local till, waiting, length = match(redis.call('HGET', SWEEP, 'overdue') or '', '^(%d+) (%d+) (%d+)$')
  if till and tonumber(till) <= now then ramp = '' end
  if not till or ramp then
    waiting = redis.call('ZCOUNT', SCHEDULE, '-inf', format('%d', now - LATE_MS))
    if waiting <= MASS then return tonumber(limit) end
    till, length = now + RAMP_MS, RAMP_MS
    ramp = format('%d %d %d', till, waiting, length)
    audit[#audit + 1] = format('- 0 ramp overdue %d %d jobs are overdue', length, waiting)
  end
  local one = { till = tonumber(till), waiting = tonumber(waiting), length = tonumber(length) }
  return math.min(tonumber(limit), open_gates().lets_in(one, redis.call('ZCOUNT', SCHEDULE, '-inf', upto)))
end

local most = share()
local due = most > 0 and redis.call('ZRANGEBYSCORE', SCHEDULE, '-inf', upto, 'LIMIT', 0, most) or {}
for i = 1, #due do
  if moved >= MOST_BYTES then break end
  local rec = load(due[i])
  if rec and not rec.bad and not rec.ready and WAITING[rec.status] and rec.en == '-' then
    local env = redis.call('HGET', BODY .. rec.id, 'env')
    if env then
      moved = moved + #env
      make_ready(rec, env)
      rec.unschedule = true
      promoted = promoted + 1
    else
      fail(rec, 'entry_deleted', 'unknown', 'entry_deleted', '', '', 'own')
    end
  elseif rec and rec.bad then
    if not rec.dead then bury_unreadable(rec, rec.la or '', redis.call('HGET', BODY .. rec.id, 'env')) end
  else
    stale[#stale + 1] = due[i]
  end
end

if #overdue > 0 or #due > 0 then
  commit()
  if #stale > 0 then redis.call('ZREM', SCHEDULE, unpack(stale)) end
  if #stale_deadlines > 0 then redis.call('ZREM', DEADLINES, unpack(stale_deadlines)) end
end
if ramp == '' then redis.call('HDEL', SWEEP, 'overdue') elseif ramp then redis.call('HSET', SWEEP, 'overdue', ramp) end
if moved >= MOST_BYTES or #overdue == tonumber(limit) or #due == tonumber(limit) then more = 1 end
local nearest = redis.call('ZRANGE', SCHEDULE, 0, 0, 'WITHSCORES')[2]
return { promoted, expired, nearest or '', more }
