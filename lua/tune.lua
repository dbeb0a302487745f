-- tune: what operators change at run time: pauses, limits, throttles, the drain. Each is an audit line of the log.
--
-- Replies, one per row:  OK | NOTHING (a resume of what is not paused, a reset of what was not set)
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
-- throttle: a scope, with `figures overflow`, or '' to lift it. drain: the backlog, with `on|off figures|-`, or ''
-- to let what is declared hold.
local script = 'tune'
-- include: fragments/base.lua
-- include: fragments/record.lua
-- include: fragments/transition.lua
-- include: fragments/make_ready.lua
-- include: fragments/gates.lua
-- include: fragments/turnstile.lua
-- include: fragments/commit.lua
local POLICIES = tag .. ':policies'
local known = open_gates()
local writes = {}                        -- field -> value, or false to take it away
local overdue                            -- another ramp of the overdue jobs

local function is_set(field)
  if writes[field] ~= nil then return writes[field] end
  return redis.call('HGET', POLICIES, field)
end

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

local function set_limit(name, figures)
  writes['limit:' .. name] = figures
  known.timers['limits:' .. match(name, '^%l+')] = now_text
  return 'OK', true
end

function verbs.limit(name, figures)
  if is_set('limit:' .. name) == figures then return 'OK', false end
  return set_limit(name, figures)
end

function verbs.reset(name)
  if not is_set('limit:' .. name) then return 'NOTHING', false end
  return set_limit(name, false)
end

function verbs.throttle(scope, value, reason)
  local lines, stands = {}, nil
  for line in string.gmatch(is_set('throttles') or '', '[^\n]+') do
    local name, figures = match(line, '^throttle (%S+) (%S+ %l+)')
    if name == scope then stands = figures else lines[#lines + 1] = line end
  end
  if value == (stands or '') then return stands and 'OK' or 'NOTHING', false end
  if value ~= '' then
    lines[#lines + 1] = 'throttle ' .. scope .. ' ' .. value .. ' ' .. actor .. ' ' .. now_text .. ' ' .. reason
  end
  table.sort(lines)
  writes.throttles = #lines > 0 and table.concat(lines, '\n')
  return 'OK', true
end

function verbs.drain(_, value, reason)
  local stands = match(is_set('drain') or '', '^%l+ %S+') or ''
  if value == stands then return value ~= '' and 'OK' or 'NOTHING', false end
  writes.drain = value ~= '' and value .. ' ' .. actor .. ' ' .. now_text .. ' ' .. reason
  return 'OK', true
end

function verbs.note()                    -- of what other calls will do: a replay of many, say
  return 'OK', true
end

local replies = {}
for i = 4, #ARGV, 4 do
  local verb, name, value, reason = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  if not verbs[verb] then error('no such verb: ' .. verb) end
  local changed
  replies[#replies + 1], changed = verbs[verb](name, value, reason)
  if changed then
    audit[#audit + 1] = '- 0 ' .. verb .. ' ' .. name .. ' ' .. (value ~= '' and value or '-') .. ' ' .. reason
  end
end
if #audit > 0 then
  commit()                               -- with the timers: who was set free is looked at again
  if overdue then redis.call('HSET', SWEEP, 'overdue', overdue) end
  for field, figures in pairs(writes) do
    local was_set = redis.call('HEXISTS', POLICIES, field) == 1
    if figures then redis.call('HSET', POLICIES, field, figures) else redis.call('HDEL', POLICIES, field) end
    if sub(field, 1, 6) == 'limit:' and was_set ~= (figures ~= false) and redis.call('HINCRBY', POLICIES, 'limits', figures and 1 or -1) <= 0 then
      redis.call('HDEL', POLICIES, 'limits')
    end
  end
end
return replies
