-- gate_state: the gates that a call looks at. Each is read once, changed in memory, and written by `commit`.
--
-- Holders are a zset of job ids: those that run have the time (ms) of their claim as score, those that were
-- granted the gate and are not claimed yet have minus their place, so that the latest place comes first.
-- A rate has no holders that run: its members were promised one of its tokens.
-- `waiting` counts who waits at each gate, by lane: `lane n lane n`.
local GATE, WAITING_AT, WAITERS = tag .. ':gate:', tag .. ':waiting:', tag .. ':waiting'
local POLICIES, TIMERS, PAUSES = tag .. ':policies', tag .. ':timers', tag .. ':pauses'
local BREAKERS = tag .. ':breakers'
local LOCK = { entity = true, concurrency = true }       -- kinds with holders that run
local by_name, in_order = {}, {}
local lists, policies = {}, {}
local timers = {}                        -- member -> due ms, or false to take it away
local last_place                         -- the latest place that was given to anybody

local function policy(field)             -- what operators or workers have set, or false
  local value = policies[field]
  if value == nil then
    value = redis.call('HGET', POLICIES, field)
    policies[field] = value
  end
  return value
end

local function kind_of(name) return match(name, '^%a+') end

local function gates_of(rec)             -- the words of the record's list
  local text = rec.ga or ''
  local list = lists[text]
  if list then return list end
  list = {}
  for word in string.gmatch(text, ' (%S+)') do           -- the first word is a number
    local name, figures, limit = match(word, '^([^|]+)|?([^|]*)|?(.*)$')
    local kind = kind_of(name)
    list[#list + 1] = { name = name, kind = kind, lock = LOCK[kind], figures = figures, limit = limit }
  end
  lists[text] = list
  return list
end

local function figures_of(word)          -- in force: an operator's, else what workers declared last, else its own
  if not word.in_force then
    local limit = word.limit ~= '' and word.limit or word.name
    word.in_force = policy('limits') and (policy('limit:' .. word.name) or policy('limit:' .. limit))
      or policy('declared:' .. limit) or word.figures
    word.most = tonumber(word.in_force)
  end
  return word.in_force
end

local function word_of(rec, name)
  for _, word in ipairs(gates_of(rec)) do
    if word.name == name then return word end
  end
  return nil
end

-- `spare`: so many more pass in this call without a second look, by the figures of `spare_for`, since there is room
-- and nobody waits.
local function gate_of(name)
  local gate = by_name[name]
  if gate then return gate end
  gate = { name = name, kind = kind_of(name), key = GATE .. name, more = 0, change = {}, moved = {}, fresh = {},
    heads = {} }
  by_name[name] = gate
  in_order[#in_order + 1] = gate
  return gate
end

local function count_of(gate)            -- holders, with what this call has changed
  if not gate.held then gate.held = redis.call('ZCARD', gate.key) end
  return gate.held + gate.more
end

local function gate_at(word)             -- the gate of a word
  if not word.gate then word.gate = gate_of(word.name) end
  return word.gate
end

local function waits_at(rec)             -- the gate where it is parked, or nil
  return sub(rec.en, 1, 2) == 'g:' and gate_of(sub(rec.en, 3)) or nil
end

local nobody_waits                       -- no gate has a waiter: one look for all gates

local function waits_of(gate)            -- lane -> how many wait there
  if gate.waits then return gate.waits end
  gate.waits, gate.total = {}, 0
  if nobody_waits == nil then nobody_waits = redis.call('HLEN', WAITERS) == 0 end
  if nobody_waits then return gate.waits end
  for lane, count in string.gmatch(redis.call('HGET', WAITERS, gate.name) or '', '(%S+) (%d+)') do
    gate.waits[lane] = tonumber(count)
    gate.total = gate.total + gate.waits[lane]
  end
  return gate.waits
end

local function count_waiter(gate, lane, by)
  local waits = waits_of(gate)
  waits[lane] = math.max(0, (waits[lane] or 0) + by)
  gate.total = math.max(0, gate.total + by)
  gate.recount, gate.spare_for = true, nil
end

local function drop_holder(gate, id)
  if gate.change[id] == false then return end
  gate.change[id] = false
  gate.more = gate.more - 1
  gate.touched = true
end

local function add_holder(gate, id, score)
  gate.more = gate.more + 1
  gate.change[id] = score
end

-- What a waiting job has been granted, as names between blanks: ' a b '.
local function is_granted(rec, name)
  return string.find(rec.hg or '', ' ' .. name .. ' ', 1, true) ~= nil
end

local function holds(rec, name)          -- by its record, which decides (D13)
  if not rec or rec.bad then return false end
  if is_granted(rec, name) then return true end            -- while it waits, or tries a dependency
  return HELD[rec.status] and LOCK[kind_of(name)] and word_of(rec, name) ~= nil
end

local function next_place()              -- the time in 1/1024 ms, but after every other (as a fence, D4)
  last_place = math.max((last_place or tonumber(redis.call('HGET', STATS, 'places') or '0')) + 1, now * 1024)
  return last_place
end

-- Its place in every queue, given once and kept (D12, D16), or nil. Who passes without waiting is given none;
-- when it comes back, it stands where it was enqueued, or where its delay was over.
local function first_place(rec)
  if (rec.pl or '') ~= '' then return tonumber(rec.pl) end
  if (rec.sd or '') == '' then return nil end            -- no claim of it has ended yet
  return (match(rec.di or '', '^SCHEDULED (%d+)$') or rec.at) * 1024
end

local function place_of(rec)
  if (rec.pl or '') == '' then put(rec, 'pl', format('%d', first_place(rec) or next_place())) end
  return tonumber(rec.pl)
end

local function line_up(rec)              -- behind all others
  put(rec, 'pl', format('%d', next_place()))
end

local pauses                             -- scope -> what holds it up, read once
local calm                               -- whether there is nothing
local pauses_changed = false

local function paused(scope)
  if not pauses then
    pauses = {}
    for name, state, waiting, length, till, more in
      string.gmatch(redis.call('GET', PAUSES) or '', '(%S+) (%l+),?(%d*),?(%d*) (%d+)([^\n]*)') do
      pauses[name] = { state = state, till = tonumber(till), more = more, waiting = tonumber(waiting),
        length = tonumber(length) }
    end
    calm = next(pauses) == nil
  end
  return pauses[scope]
end

local function something_is_paused()
  if calm == nil then paused('') end
  return not calm
end

-- state `paused`: shut until `till`, or for ever if that is 0; `ramp`: open, and who waited is in by `till`, see
-- openings.lua: `waiting` were they when it began, `length` ms it takes. `more` is what operators want to
-- read: who and why.
local function set_pause(scope, state, till, more, waiting, length)
  paused(scope)
  pauses[scope] = state and { state = state, till = till, more = more, waiting = waiting, length = length } or nil
  pauses_changed, calm = true, next(pauses) == nil
end

local breakers                           -- what is known of breakers, once one of them matters
local breakers_text                      -- those that are not closed, see breakers.lua; read once

local function tripped()
  if breakers_text == nil then breakers_text = redis.call('GET', BREAKERS) end
  return breakers_text
end

local function lane_is_paused(lane)
  local pause = paused('lane:' .. lane)
  return pause ~= nil and pause.state == 'paused'
end
