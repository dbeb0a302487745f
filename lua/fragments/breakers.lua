-- breakers: a dependency that fails is left alone for a while, then tried by few, then opened by a ramp.
--
-- `breakers` has a line for each that is not closed: `gate state since till trips good waiting length by reason`.
--   open       shut until `till`; 0: until an operator says otherwise
--   half_open  as many jobs at a time as the figures say may try; `good` calls went well
--   closing    open; who waited comes in by a ramp of `length` ms from `since`, see openings.lua
--   closed     an operator's word, until `till`: calls are not judged
-- `by` is who said so, '-' for nobody: then the calls decide. `breaker:<name>` counts those of the last window,
-- `half ok failed ok failed`, by halves of the window: this one and the one before.
-- Leaves `breakers`, see the end; nothing of it is made before a job or a call names a breaker.
local COUNTS = tag .. ':breaker:'
local MOST_TRIPS = 4                     -- it stays open twice as long after each trial that fails, up to 8 times
local LINE = '(%S+) (%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) ([^\n]*)'
local known = {}                         -- those that are not closed, by name
local changed = false
local counted = {}                       -- name -> what the calls of its window come to, or false for none
local rules = {}

for name, state, since, till, trips, good, waiting, length, by, reason in
  string.gmatch(tripped() or '', LINE) do
  known[name] = { state = state, since = tonumber(since), till = tonumber(till), trips = tonumber(trips),
    good = tonumber(good), waiting = tonumber(waiting), length = tonumber(length), by = by, reason = reason }
end

local function rules_of(name, word)      -- nil: nobody declares it
  if not rules[name] then
    local figures = figures_of(word or { name = name, limit = '', figures = '' })
    local ratio, minimum, window, open_ms, probes, ramp_ms =
      match(figures, '^(%d+),(%d+),(%d+),(%d+),(%d+),(%d+)$')
    rules[name] = ratio and { ratio = tonumber(ratio), minimum = tonumber(minimum), window = tonumber(window),
      open_ms = tonumber(open_ms), probes = tonumber(probes), ramp_ms = tonumber(ramp_ms) }
  end
  return rules[name]
end

local function turn(name, state, more, why)                -- to another state, and into the log
  local one = more or {}
  one.state, one.since, one.till = state, now, one.till or 0
  one.trips, one.good, one.waiting, one.length = one.trips or 0, 0, one.waiting or 0, one.length or 0
  one.by, one.reason = one.by or '-', one.reason or why or '-'
  known[name] = one
  changed = true
  counted[name] = false                  -- what was before says nothing of now
  local gate = gate_of(name)
  gate.touched = true
  timers[name] = one.till > 0 and format('%d', one.till) or false
  if one.by == '-' then audit[#audit + 1] = '- 0 ' .. state .. ' ' .. name .. ' - ' .. why end
end

local function forget(name)                -- closed as if there were none
  known[name] = nil
  changed = true
  audit[#audit + 1] = '- 0 closed ' .. name .. ' - -'
end

local function waiting_at(name)
  local gate = gate_of(name)
  waits_of(gate)
  return gate.total
end

local function trip(name, rule, why)
  local trips = math.min(MOST_TRIPS, (known[name] and known[name].trips or 0) + 1)
  turn(name, 'open', { till = now + rule.open_ms * 2 ^ (trips - 1), trips = trips }, why)
end

local function close(name, ramp_ms, more, why)
  more = more or {}
  more.waiting, more.length = waiting_at(name), ramp_ms
  turn(name, more.by and 'closed' or 'closing', more, why)
end

local function at(name)                  -- what holds now; nil: closed
  local one = known[name]
  if one and one.since > now then        -- by a clock that was ahead: it lasts as long as it was meant to, from now
    one.till = one.till > 0 and now + one.till - one.since or 0
    one.since, changed, gate_of(name).touched = now, true, true
    if one.till > 0 then timers[name] = format('%d', one.till) end
  end
  if one and one.till > 0 and one.till <= now then
    if one.state == 'open' then
      turn(name, 'half_open', { trips = one.trips }, 'its time is over')
    else
      forget(name)                         -- an operator's word that has run out
    end
    one = known[name]
  end
  return one
end

local function count(name, rule, ok, failed)               -- calls of the window: went well, failed
  local half, text = math.floor(now / (rule.window / 2)), counted[name]
  if text == nil then text = redis.call('GET', COUNTS .. sub(name, 9)) end
  local of, good, bad, good_before, bad_before = match(text or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  local age = of and half - of or 2
  if age == 1 then
    good_before, bad_before, good, bad = good, bad, 0, 0
  elseif age > 1 then
    good, bad, good_before, bad_before = 0, 0, 0, 0
  else
    half = of                            -- also for a clock that was put back
  end
  good, bad = good + ok, bad + failed
  counted[name] = format('%d %d %d %d %d', half, good, bad, good_before, bad_before)
  return good + good_before, bad + bad_before
end

local function judge(name, ok, failed)   -- what calls that ended say of a dependency
  local rule, one = rules_of(name), at(name)
  if not rule or one and (one.by ~= '-' or one.state == 'open') then return end
  if one and one.state == 'half_open' then
    if failed > 0 then return trip(name, rule, 'it fails still') end
    one.good, changed = one.good + ok, true
    if one.good >= rule.probes then close(name, rule.ramp_ms, nil, format('%d calls went well', one.good)) end
    return
  end
  local good, bad = count(name, rule, ok, failed)
  if good + bad >= rule.minimum and bad * 100 >= rule.ratio * (good + bad) then
    trip(name, rule, format('%d of %d calls failed', bad, good + bad))
  end
end

local function report(calls)             -- lines: gate ok errors timeouts
  for name, ok, errors, timeouts in string.gmatch(calls, '(%S+) (%d+) (%d+) (%d+)') do
    judge(name, tonumber(ok), tonumber(errors) + tonumber(timeouts))
  end
end

local function probing(name)             -- only few may try
  local one = at(name)
  return one and one.state == 'half_open'
end

local function is_shut(name)
  local one = at(name)
  return one and one.state == 'open'
end

local function places(word)              -- how many may try at a time
  local rule = rules_of(word.name, word)
  if not rule then error('the figures of ' .. word.name .. ' cannot be read: ' .. figures_of(word)) end
  return rule.probes
end

local function let_in_all(gate)        -- lets in who waits, where it is open for all
  local one = at(gate.name)
  if one and one.state == 'open' then return end
  local ramp = one and one.length > 0 and { waiting = one.waiting, length = one.length, till = one.since + one.length }
  if let_in(gate, ramp) and one and one.state == 'closing' then forget(gate.name) end
end

local function write()
  for name, text in pairs(counted) do
    local key = COUNTS .. sub(name, 9)
    if text then
      redis.call('SET', key, text, 'PX', format('%d', 2 * rules_of(name).window))
    else
      redis.call('DEL', key)
    end
  end
  if not changed then return end
  local text = {}
  for name, one in pairs(known) do
    text[#text + 1] = format('%s %s %d %d %d %d %d %d %s %s', name, one.state, one.since, one.till, one.trips,
      one.good, one.waiting, one.length, one.by, one.reason)
  end
  table.sort(text)
  if #text > 0 then redis.call('SET', BREAKERS, table.concat(text, '\n')) else redis.call('DEL', BREAKERS) end
end

breakers = { at = at, turn = turn, close = close, report = report, probing = probing, is_shut = is_shut,
  places = places, let_in = let_in_all, write = write, rules_of = rules_of, forget = forget }
