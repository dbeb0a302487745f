-- enqueue: new jobs -> queued, each with a typed disposition; the same job id sent again changes nothing.
--
-- Order: job id seen, idempotency key, room in the mirror's log, admission, delay, write. Begins with a growing
-- write, so that under OOM the whole call is refused (R31). A caller that knows the marker of a mirror is refused as a
-- whole while Redis has another or none, since it has lost data, and everybody until that is restored (D19).
-- One that knows none, or one that is off, gets the marker that stands as one reply more.
-- Replies, one per row:  ACCEPTED | SCHEDULED <due ms> | DEFERRED | PARKED | DUPLICATE <job id> <status> | CONFLICT <job id> <status> | REJECTED <retry ms> <reason>
local tag    = KEYS[1]                   -- hash tag of the shard
local clock  = ARGV[1]                   -- ms, or '' for Redis TIME
local marker = ARGV[2]                   -- of the mirror, as the caller knows it; '' for none
-- rows: id task lane env extra
-- `extra` is '' or ten lines: key id, fingerprint, window ms, delay ms, deadline ms, tenant, max starts,
-- producer, gates, route. An empty line means: none. The route may be followed by two parts more: why the job is to
-- wait in the backlog, and its window, which `coalesce` reads.
local script = 'enqueue'
-- include: fragments/base.lua

local function finish(replies)           -- what every call ends with, once its jobs are written
  if #lines > 0 then
    add_event(script, '-')
  elseif next(counters) then
    redis.call('PERSIST', FENCE)         -- a refusal is counted under OOM as well (R31)
  end
  for field, by in pairs(counters) do redis.call('HINCRBY', STATS, field, format('%d', by)) end
-- include: fragments/enqueue_replies.lua
end

-- include: fragments/enqueue_ordinary.lua

local function enqueue()                 -- one function, for what is said in exchange.lua
-- include: fragments/gates.lua
-- include: fragments/turnstile.lua
-- include: fragments/enqueue_step.lua
-- include: fragments/enqueue_rows.lua
  write_accepted()
  tell_parked(replies)
  return finish(replies)
end

return enqueue_ordinary() or enqueue()
