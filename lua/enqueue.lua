-- enqueue: new jobs -> queued, each with a typed disposition; the same job id sent again changes nothing.
--
-- Order: job id seen, idempotency key, room in the mirror's log, admission, delay, write. Begins with a growing write, so
-- that under OOM the whole call is refused (R31). A caller that knows the marker of a mirror is refused as a
-- whole while Redis has another or none, since it has lost data, and everybody until that is restored (D19).
-- One that knows none, or one that is off, gets the marker that stands as one reply more.
-- Replies, one per row:  ACCEPTED | SCHEDULED <due ms> | DEFERRED | DUPLICATE <job id> <status> | CONFLICT <job id> <status> | REJECTED <retry ms> <reason>
local tag    = KEYS[1]                   -- hash tag of the shard
local clock  = ARGV[1]                   -- ms, or '' for Redis TIME
local marker = ARGV[2]                   -- of the mirror, as the caller knows it; '' for none
-- rows: id task lane env extra
-- `extra` is '' or eleven lines: key id, fingerprint, window ms, delay ms, deadline ms, tenant, max starts,
-- producer, gates, route, backlog (why it is to wait there). An empty line means: none.
local script = 'enqueue'
-- include: fragments/base.lua

local function enqueue()                 -- one function, for what is said in exchange.lua
-- include: fragments/gates.lua
-- include: fragments/turnstile.lua
-- include: fragments/enqueue_step.lua
-- include: fragments/admission.lua
  local on = mirrored('declared:admission', 'throttles')
  if switch[1] or switch[2] then door = open_door(switch[1] or '', switch[2] or '') end
  if switch.restoring or (marker ~= '' and switch.marker ~= marker and switch.marker ~= 'off') then
    return 'RESTORING'
  end
  if on and switch.bound then
    log_is_full = tonumber(redis.call('HGET', STATS, 'log_bytes') or '0') >= tonumber(switch.bound)
  end
  local replies = {}
  for i = 3, #ARGV, 5 do
    local id = ARGV[i]
    local reply = decide(id, ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
    seen_ids[id] = seen_ids[id] or reply
    replies[#replies + 1] = reply
  end
  write_accepted()
  if #lines > 0 then
    add_event(script, '-')
  elseif next(counters) then
    redis.call('PERSIST', FENCE)           -- a refusal is counted under OOM as well (R31)
  end
  for field, by in pairs(counters) do redis.call('HINCRBY', STATS, field, format('%d', by)) end
  local stands = on and switch.marker or ''
  if stands ~= marker then replies[#replies + 1] = 'MARKER ' .. stands end
  return replies
end

return enqueue()
