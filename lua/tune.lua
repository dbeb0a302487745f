-- tune: what operators change at run time: pauses, limits, throttles, the drain, slots, retries. Each is an audit line
-- of the log, and one of `changes`, by which it can be taken back.
--
-- What is expected and not so stops the whole call, with one reply: CHANGED, or DONE if it was this very call before.
-- Replies, one per row:  OK | NOTHING (a resume of what is not paused, a reset of what was not set) | CHANGED | DONE
local tag          = KEYS[1]             -- hash tag of the shard
local clock        = ARGV[1]             -- ms, or '' for Redis TIME
local actor        = ARGV[2]             -- who asks, for the log
local retention_ms = ARGV[3]             -- how long a finished record stays
-- rows: verb name value reason
-- pause: a scope, for `value` ms or '' for good. resume: a scope, or `overdue`; who waits comes in over `value` ms.
-- open, close: a breaker, for the first number of `value` in ms or 0 for good; of `close` the second is the ms over
-- which its waiters come in. auto: a breaker whose calls decide again.
-- note: what is about to be done by other calls, and to how many.
-- limit: a gate's name or a limit, and its figures. reset: the same without figures: what was declared holds.
-- throttle: a scope, with `figures overflow`. drain: the backlog, with `on|off figures|-`. slots: a lane, with
-- `reserved,weight`, '-' for what is declared. retries: a task or *, with its figures, see core/overrides.py. Each of
-- them, as `limit`, may end with `;for=ms`; '' takes it back.
-- expect: the first row alone may be it: a topic and its name, the id of their last change or 0, and the change that
-- this call takes back, or 0.
local script = 'tune'
-- include: fragments/base.lua
-- include: fragments/record.lua
-- include: fragments/transition.lua
-- include: fragments/make_ready.lua
-- include: fragments/gates.lua
-- include: fragments/turnstile.lua
-- include: fragments/commit.lua
local CHANGES, KEPT = tag .. ':changes', 200
local TOPICS = { resume = 'pause', reset = 'limit', open = 'breaker', close = 'breaker', auto = 'breaker' }
local known = open_gates()
local settings = known.settings()
local changes, by_what = {}, {}          -- what this call changes, in order; and by its topic and name
local overdue                            -- another ramp of the overdue jobs

local verbs = {}                         -- each returns its reply, and whether it changed anything

function verbs.pause(scope, value, reason)
  local till = value ~= '' and now + tonumber(value) or 0
  local stands = known.paused(scope)
  if stands and stands.state == 'paused' and stands.till == till
    and match(stands.more, '^ %S+ %d+ ?(.*)$') == reason then
    return 'OK', false
  end
  known.set_pause(scope, 'paused', till, ' ' .. actor .. ' ' .. now_text .. ' ' .. reason)
  if till > 0 then known.timers['pause:' .. scope] = format('%d', till) end
  if sub(scope, 1, 5) == 'lane:' then known.timers[scope] = now_text end
  return 'OK', true
end

local function let_back(value)           -- the overdue jobs, see promote.lua; for a minute, if at once
  if redis.call('HEXISTS', SWEEP, 'overdue') == 0 then return 'NOTHING', false end
  local waiting, length = redis.call('ZCOUNT', SCHEDULE, '-inf', now_text), tonumber(value)
  if length == 0 then waiting, length = 0, 60000 end
  overdue = format('%d %d %d', now + length, waiting, length)
  return 'OK', true
end

function verbs.resume(scope, value)
  if scope == 'overdue' then return let_back(value) end
  local pause = known.paused(scope)
  if not pause then return 'NOTHING', false end
  if pause.state == 'ramp' and now + tonumber(value) >= pause.till then return 'OK', false end
  known.lift(scope, tonumber(value))
  return 'OK', true
end

local function force(state, name, value, reason)
  local breakers = known.breakers()
  local for_ms, ramp_ms = match(value, '^(%d+) (%d+)$')
  local till, one = tonumber(for_ms) > 0 and now + for_ms or 0, breakers.at(name)
  if one and one.by ~= '-' and one.state == state and one.till == till and one.reason == reason then
    return 'OK', false
  end
  local more = { till = till, by = actor, reason = reason }
  if state == 'closed' then breakers.close(name, tonumber(ramp_ms), more) else breakers.turn(name, state, more) end
  return 'OK', true
end

function verbs.open(name, value, reason) return force('open', name, value, reason) end

function verbs.close(name, value, reason) return force('closed', name, value, reason) end

function verbs.auto(name)
  local breakers = known.breakers()
  local one = breakers.at(name)
  if not one or one.by == '-' then return 'NOTHING', false end
  if one.state == 'open' then
    breakers.turn(name, 'half_open', nil, 'an operator let it go')
  else
    breakers.forget(name)
  end
  return 'OK', true
end

function verbs.limit(name, value, reason) return settings.set('limit', name, value, actor, reason) end

function verbs.reset(name) return settings.set('limit', name, '', actor) end

function verbs.throttle(name, value, reason) return settings.set('throttle', name, value, actor, reason) end

function verbs.drain(name, value, reason) return settings.set('drain', name, value, actor, reason) end

function verbs.slots(name, value, reason) return settings.set('slots', name, value, actor, reason) end

function verbs.retries(name, value, reason) return settings.set('retries', name, value, actor, reason) end

function verbs.note()                    -- of what other calls will do: a replay of many, say
  return 'OK', true
end

local function standing(topic, name)     -- what operators have set there, as it goes into `changes`
  if topic == 'pause' then
    local pause = known.paused(name)
    return pause and pause.state .. ' ' .. format('%d', pause.till) .. pause.more or ''
  elseif topic == 'breaker' then
    local one = known.breakers().at(name)
    if not one or one.by == '-' then return '' end
    return format('%s %d %d %s %d %s', one.state, one.till, one.length, one.by, one.since, one.reason)
  end
  return settings.entry(topic .. ' ' .. name) or ''
end

local function newest(what)              -- the last change of this topic and name, and which it took back
  for _, line in ipairs(redis.call('LRANGE', CHANGES, 0, -1)) do
    local id, undoes, of = match(line, '^(%d+) %d+ %S+ (%d+)\t([^\t]*)\t')
    if of == what then return id, undoes end
  end
  return '0', '0'
end

local first, undoes = 4, '0'
if ARGV[4] == 'expect' then
  local id, undone = newest(ARGV[5])
  undoes, first = ARGV[7], 8
  if undoes ~= '0' and undone == undoes then return { 'DONE' } end
  if id ~= ARGV[6] then return { 'CHANGED' } end
end

local function note_change(topic, verb, name, value, reason, before)
  local what = topic .. ' ' .. name
  local one = by_what[what]
  if not one then
    one = { what = what, before = before }
    by_what[what] = one
    changes[#changes + 1] = one
  end
  -- What holds for good below one with a time is what the change is known by: it can be taken back after that time.
  if one.for_good and match(value, ';for=%d+$') then return end
  one.for_good = value ~= '' and not match(value, ';for=%d+$')
  one.said = verb .. ' ' .. (value ~= '' and value or '-') .. '\t' .. reason
end

local replies = {}
for i = first, #ARGV, 4 do
  local verb, name, value, reason = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  if not verbs[verb] then error('no such verb: ' .. verb) end
  local topic = TOPICS[verb] or verb
  local kept = topic ~= 'note' and name ~= 'overdue'
  local before, changed = kept and standing(topic, name) or '', nil
  replies[#replies + 1], changed = verbs[verb](name, value, reason)
  if changed then
    audit[#audit + 1] = '- 0 ' .. verb .. ' ' .. name .. ' ' .. (value ~= '' and value or '-') .. ' ' .. reason
    if kept then note_change(topic, verb, name, value, reason, before) end
  end
end
if #audit > 0 then
  commit()                               -- with the timers: who was set free is looked at again
  if overdue then redis.call('HSET', SWEEP, 'overdue', overdue) end
  for _, one in ipairs(changes) do
    local id = format('%d', redis.call('HINCRBY', STATS, 'changes', 1))
    redis.call('LPUSH', CHANGES, id .. ' ' .. now_text .. ' ' .. actor .. ' ' .. undoes .. '\t' .. one.what .. '\t' .. one.said
      .. '\n' .. one.before)
  end
  if #changes > 0 then redis.call('LTRIM', CHANGES, 0, KEPT - 1) end
end
return replies
