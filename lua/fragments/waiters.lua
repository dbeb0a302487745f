-- waiters: passing gates, all or none; parking at the first that is shut; granting what is freed (D12, D13).
--
-- A job passes a gate that it was granted, or that has room while nobody with an earlier place waits there,
-- or whose unclaimed grant to a later place it takes over. A grant makes the waiter a holder before it
-- enters ready, so that nobody overtakes it; one that is not claimed within 5 s goes to the next.
local UNCLAIMED_MS = 5000
local WINDOW = 16                        -- waiters of a lane read at a time
local DEAD = 100                         -- waiters of one gate that are looked at and found gone, in one call
local STEP_MS = 250                      -- between two steps of a pause that opens
local RAMP_MS = 60000                    -- how long a pause that ran out takes to open
local budget = 100                       -- grants of one call (R32)
local victims = {}                       -- gate name -> who loses its grant to the job that is looked at

local function move_out(gate, lane, id)
  gate.moved[id] = { lane = lane }
  count_waiter(gate, lane, -1)
end

local function head(gate, lane)          -- who waits first in this lane: id and place
  local seen = gate.heads[lane]
  if not seen then
    seen = { at = 1, from = 0, list = {} }
    gate.heads[lane] = seen
  end
  local id, place
  while true do
    id, place = seen.list[seen.at], tonumber(seen.list[seen.at + 1])
    if id and not gate.moved[id] then break end
    if id then
      seen.at = seen.at + 2
    elseif seen.done then
      break
    else
      seen.list = redis.call('ZRANGE', WAITING_AT .. lane .. ':' .. gate.name, seen.from, seen.from + WINDOW - 1,
        'WITHSCORES')
      seen.from, seen.at, seen.done = seen.from + WINDOW, 1, #seen.list < 2 * WINDOW
    end
  end
  for _, one in ipairs(gate.fresh[lane] or {}) do        -- parked by this very call
    if gate.moved[one.id] == one and (not place or one.place < place) then id, place = one.id, one.place end
  end
  return id, place
end

local function lanes_of(gate)            -- lanes in which somebody waits, the urgent first
  local waits, lanes, seen = waits_of(gate), {}, {}
  for lane in string.gmatch(policy('lanes') or '', '%S+') do
    seen[lane] = true
    if (waits[lane] or 0) > 0 then lanes[#lanes + 1] = lane end
  end
  for lane, count in pairs(waits) do
    if count > 0 and not seen[lane] then lanes[#lanes + 1] = lane end
  end
  return lanes
end

local function next_up(gate)             -- lane and id of who comes next, and the earliest place
  local first, urgent
  for _, lane in ipairs(lanes_of(gate)) do
    if not lane_is_paused(lane) then     -- its waiters do not count
      local id, place = head(gate, lane)
      if id then
        local one = { lane = lane, id = id, place = place }
        urgent = urgent or one
        if not first or place < first.place then first = one end
      else                               -- nobody is there: the count was wrong
        count_waiter(gate, lane, -gate.waits[lane])
      end
    end
  end
  -- An entity's order stands above the lanes', and every fourth grant goes to who has waited longest.
  local one = (gate.kind == 'entity' or gate.total % 4 == 0 or not policy('lanes')) and first or urgent
  return one, first and first.place
end

local function someone_earlier(gate, rec)
  waits_of(gate)
  if gate.total == 0 then return false end
  local _, place = next_up(gate)
  local mine = tonumber(rec.pl or '')
  return place ~= nil and (not mine or place < mine)
end

local function next_waiter(gate)
  for _ = 1, DEAD do
    local one = next_up(gate)
    if not one then return nil end
    local rec = load(one.id)
    if rec and not rec.bad and WAITING[rec.status] and rec.en == 'g:' .. gate.name and rec.la == one.lane then
      local env = rec.keep_env or redis.call('HGET', BODY .. rec.id, 'env')
      if env then return rec, env end
    end
    move_out(gate, one.lane, one.id)     -- over, or elsewhere: `repair` finds it if it is nowhere
  end
  return nil
end

-- --- grants

local function set_grants(rec, names)
  local text = #names > 0 and ' ' .. table.concat(names, ' ') .. ' ' or ''
  if text ~= (rec.hg or '') then put(rec, 'hg', text) end
end

local function return_grants(rec, keeps) -- all but those that `keeps` says
  local kept = {}
  for name in string.gmatch(rec.hg or '', '%S+') do
    if keeps(name) then kept[#kept + 1] = name else drop_holder(gate_of(name), rec.id) end
  end
  set_grants(rec, kept)
end

local function watch_grants(rec)         -- when they go back if nobody claims the job; an entity never does
  local due = 'inf'
  for name in string.gmatch(rec.hg, '%S+') do
    if kind_of(name) ~= 'entity' then due = format('%d', now + UNCLAIMED_MS) end
  end
  timers['grant:' .. rec.id] = due
end

local function nothing() return false end

local function give_back(rec, entities_too)              -- what stands in a stream and was not claimed
  if not stream_of(rec) or (rec.hg or '') == '' then return end
  return_grants(rec, entities_too and nothing or function(name) return kind_of(name) == 'entity' end)
  if rec.hg ~= '' then watch_grants(rec) else timers['grant:' .. rec.id] = false end
end

local function give(gate, rec, env)      -- the waiter becomes a holder and enters ready
  move_out(gate, rec.la, rec.id)
  rec.en = '-'
  if gate.kind ~= 'pause' then
    add_holder(gate, rec.id, format('%d', -place_of(rec)))
    put(rec, 'hg', ((rec.hg or '') == '' and ' ' or rec.hg) .. gate.name .. ' ')
  end
  if (rec.hg or '') ~= '' then watch_grants(rec) end
  make_ready(rec, env)
  rec.keep_env, rec.unpark = nil, true
  budget = budget - 1
end

local function room(gate, word)
  if word.kind == 'rate' then return tokens_left(gate, word) end
  local figures = figures_of(word)
  local most = word.kind == 'entity' and 1 or word.most
  if not most then error('the figures of ' .. word.name .. ' cannot be read: ' .. figures) end
  return most - count_of(gate)
end

local function lift(scope, ramp_ms)      -- a pause is over: its waiters come in over that time
  local pause = paused(scope)
  if sub(scope, 1, 5) == 'lane:' then    -- nobody was parked for it
    set_pause(scope, nil)
    timers[scope] = now_text
  else
    set_pause(scope, 'ramp', now + ramp_ms, pause and pause.more or '')
    timers['pause:' .. scope] = now_text
  end
end

local function open_up(gate)             -- a pause that was lifted lets its waiters in, evenly over its time
  local scope = sub(gate.name, 7)
  local pause = paused(scope)
  if pause and pause.state == 'paused' then
    if pause.till > 0 and pause.till <= now then
      lift(scope, RAMP_MS)
    elseif pause.till > 0 then
      timers[gate.name] = format('%d', pause.till)
    end
    return
  end
  waits_of(gate)
  local left = pause and pause.till - now or 0
  local gap = math.max(STEP_MS, math.ceil(left / math.max(1, gate.total)))
  local count = left > gap and math.floor(gate.total * gap / left) or budget
  for _ = 1, math.min(count, budget) do
    local rec, env = next_waiter(gate)
    if not rec then break end
    give(gate, rec, env)
  end
  if gate.total > 0 then
    if next_up(gate) then timers[gate.name] = format('%d', now + (left > gap and gap or 1)) end
  elseif pause then
    set_pause(scope, nil)
  end
end

local function grant(gate)               -- as far as there is room and somebody waits
  if gate.kind == 'pause' then return open_up(gate) end
  waits_of(gate)
  while gate.total > 0 do
    if gate.kind == 'entity' and count_of(gate) > 0 then return end
    local rec, env = next_waiter(gate)
    if not rec then return end
    local word = word_of(rec, gate.name)
    if word and room(gate, word) < 1 then
      if word.kind == 'rate' then timers[gate.name] = format('%d', opens_at(gate, word)) end
      return
    end
    if budget <= 0 then
      timers[gate.name] = now_text
      return
    end
    give(gate, rec, env)
  end
end

local function grant_all()
  local i = 1
  while in_order[i] do                   -- more may come while we look
    if in_order[i].touched then grant(in_order[i]) end
    i = i + 1
  end
end

-- --- passing and parking

local function drop_false_holders(gate)  -- the longest holders are checked against their records (D13)
  for _, ends in ipairs({ { 'ZRANGEBYSCORE', '0', '+inf' }, { 'ZREVRANGEBYSCORE', '(0', '-inf' } }) do
    local oldest = redis.call(ends[1], gate.key, ends[2], ends[3], 'LIMIT', 0, 8)
    for _, id in ipairs(oldest) do       -- as far as they are false
      if gate.change[id] ~= nil or holds(load(id), gate.name) then break end
      drop_holder(gate, id)
    end
  end
end

local function may_take_over(gate, rec)  -- an unclaimed grant of a later place
  local mine = tonumber(rec.pl or '')
  if not mine then return false end
  local latest = redis.call('ZRANGEBYSCORE', gate.key, '-inf', format('(%d', -mine), 'LIMIT', 0, 8)
  for _, id in ipairs(latest) do
    local other = gate.change[id] == nil and load(id)
    if other and stream_of(other) and is_granted(other, gate.name) and envelope(other) then
      victims[gate.name] = other
      return true
    end
  end
  return false
end

local function is_open(gate, word, rec)
  if (rec.hg or '') ~= '' and is_granted(rec, gate.name) then
    if word.kind ~= 'rate' then return true end
    local level, _, period = fill(gate, word)              -- promised, and spent only now
    return level >= period
  end
  local left = room(gate, word)
  if left < 1 and not gate.checked then
    gate.checked = true
    if LOCK[word.kind] then drop_false_holders(gate) end
    left = room(gate, word)
  end
  if left >= 1 then return not someone_earlier(gate, rec) end
  return may_take_over(gate, rec)
end

local function stops(rec, scope)
  local pause = paused(scope)
  if not pause then return false end
  return pause.state == 'paused' or someone_earlier(gate_of('pause:' .. scope), rec)
end

local function first_shut(rec)           -- the first gate that it cannot pass now, or nil
  if something_is_paused() then
    if stops(rec, 'task:' .. rec.ta) then return gate_of('pause:task:' .. rec.ta) end
    if (rec.tn or '') ~= '' and stops(rec, 'tenant:' .. rec.tn) then return gate_of('pause:tenant:' .. rec.tn) end
  end
  local list = gates_of(rec)
  for i = 1, #list do
    local word = list[i]
    if word.kind == 'pause' then
      if something_is_paused() and stops(rec, sub(word.name, 7)) then return gate_of(word.name) end
    elseif word.kind ~= 'breaker' then
      if not is_open(gate_at(word), word, rec) then return gate_at(word) end
    end
  end
  return nil
end

-- Keeps the locks before this gate and gives back the rest. An entity stays with who waits for a token:
-- nobody waits long for one, and its order would be lost.
local function wait_at(rec, env, gate)
  local before, found = {}, false
  for _, word in ipairs(gates_of(rec)) do
    if word.name == gate.name then found = true end
    local stays = not found or word.kind == 'entity' and gate.kind == 'rate'
    before[word.name] = stays and LOCK[word.kind] and gate.kind ~= 'pause' or nil
  end
  if (rec.hg or '') ~= '' then
    return_grants(rec, function(name) return before[name] end)
    timers['grant:' .. rec.id] = false
  end
  local one = { id = rec.id, lane = rec.la, place = place_of(rec) }
  ack_entry(rec)
  touch(rec)
  rec.en = 'g:' .. gate.name
  effect(rec)
  rec.keep_env, rec.unpark = env, false
  gate.fresh[rec.la] = gate.fresh[rec.la] or {}
  table.insert(gate.fresh[rec.la], one)
  gate.moved[rec.id] = one
  count_waiter(gate, rec.la, 1)
  if gate.kind ~= 'pause' then gate.touched = true end
  audit[#audit + 1] = rec.id .. ' ' .. text_of[rec.epoch] .. ' parked:' .. gate.name
end

local function enter(rec)                -- holds everything from now on; a rate is charged only here
  local granted = (rec.hg or '') ~= ''
  local list = gates_of(rec)
  for i = 1, #list do
    local word = list[i]
    local victim = victims[word.name]
    if victim then wait_at(victim, envelope(victim), word.gate) end   -- at once, so that nobody overtakes it
    if word.kind == 'rate' then
      if granted and is_granted(rec, word.name) then drop_holder(word.gate, rec.id) end
      take_token(word.gate, word)
    elseif LOCK[word.kind] then
      if word.kind == 'entity' then place_of(rec) end      -- a retry comes back to this place (D16)
      if granted and is_granted(rec, word.name) then word.gate.change[rec.id] = now_text
      else add_holder(word.gate, rec.id, now_text) end
    end
  end
  if granted then
    put(rec, 'hg', '')
    timers['grant:' .. rec.id] = false
  end
end

local function arrive(row)               -- a new job has its entity at once, or waits for it in the order of arrival
  for _, word in ipairs(gates_of({ ga = row.gates })) do
    if word.kind == 'entity' then
      local gate = gate_of(word.name)
      row.place = next_place()
      waits_of(gate)
      if count_of(gate) == 0 and (gate.total == 0 or not next_up(gate)) then
        add_holder(gate, row.id, format('%d', -row.place))
        row.granted = word.name
        timers['grant:' .. row.id] = 'inf'
      else
        row.parked = word.name
        gate.moved[row.id] = { id = row.id, lane = row.lane, place = row.place }
        count_waiter(gate, row.lane, 1)
      end
    end
  end
end

local function pass(rec, env)            -- true: it may be claimed; false: it is parked
  if next(victims) then victims = {} end
  local gate = first_shut(rec)
  if gate then wait_at(rec, env, gate) else enter(rec) end
  return not gate
end

-- --- leaving

local function leave(rec)                -- a waiting job that ends: its place and its grants are free
  local gate = waits_at(rec)
  if gate then
    move_out(gate, rec.la, rec.id)
    gate.touched = gate.kind ~= 'pause'
    rec.en = '-'
  end
  if (rec.hg or '') ~= '' then
    return_grants(rec, nothing)
    timers['grant:' .. rec.id] = false
  end
end

local function free(rec)                 -- a claim ends: its locks are free; a strict one waits for the retry
  local list = gates_of(rec)
  for i = 1, #list do
    local word = list[i]
    if LOCK[word.kind] then
      local gate = gate_at(word)
      if word.kind == 'entity' and figures_of(word) == 'strict' then
        gate.change[rec.id] = format('%d', -place_of(rec))
        put(rec, 'hg', ' ' .. word.name .. ' ')
      else
        drop_holder(gate, rec.id)
      end
    end
  end
end

-- --- timers and repairs

local function scan(command, key, pattern, job, each)    -- a hundred more of them; again at once until all are seen
  local cursor = 'wake:' .. job
  local found = redis.call(command, key, redis.call('HGET', SWEEP, cursor) or '0', 'MATCH', pattern, 'COUNT', 100)
  for i = 1, #found[2], 2 do each(found[2][i], found[2][i + 1]) end
  redis.call('PERSIST', FENCE)           -- allowed under OOM, so the rest is too (R31)
  if found[1] ~= '0' then
    redis.call('HSET', SWEEP, cursor, found[1])
    timers[job] = now_text
  else
    redis.call('HDEL', SWEEP, cursor)
  end
end

local function sweep_lane(lane, job)     -- paused: its grants go back; resumed: its waiters count again
  if lane_is_paused(lane) then
    scan('ZSCAN', TIMERS, 'grant:*', job, function(member)
      local rec = load(sub(member, 7))
      if rec and not rec.bad and WAITING[rec.status] and rec.la == lane then give_back(rec, true) end
    end)
  else
    scan('HSCAN', WAITERS, '*', job, function(name, counts)
      if string.find(' ' .. counts, ' ' .. lane .. ' ', 1, true) then gate_of(name).touched = true end
    end)
  end
end

local function wake(limit)               -- serves timers whose time has come; returns how many
  local due = redis.call('ZRANGEBYSCORE', TIMERS, '-inf', now_text, 'LIMIT', 0, limit)
  for _, member in ipairs(due) do
    local what, rest = match(member, '^(%l+):(.*)$')
    timers[member] = false
    if what == 'grant' then
      local rec = load(rest)
      if rec and not rec.bad and WAITING[rec.status] then give_back(rec, false) end
    elseif what == 'lane' then
      sweep_lane(rest, member)
    elseif what == 'limits' then         -- some limits of this kind were changed
      scan('HSCAN', WAITERS, rest .. ':*', member, function(name) gate_of(name).touched = true end)
    else
      gate_of(member).touched = true
    end
  end
  return #due
end

local function look_after(rec)           -- for `repair`: whether it waits where its record says; counts anew
  local gate = waits_at(rec)
  if not gate.checked then
    gate.checked, gate.touched, gate.recount = true, true, true
    waits_of(gate)[rec.la] = 0           -- counted even if nobody knows of the lane
    gate.total = 0
    for lane in pairs(gate.waits) do
      gate.waits[lane] = redis.call('ZCARD', WAITING_AT .. lane .. ':' .. gate.name)
      gate.total = gate.total + gate.waits[lane]
    end
    if LOCK[gate.kind] then drop_false_holders(gate) end
  end
  return redis.call('ZSCORE', WAITING_AT .. rec.la .. ':' .. gate.name, rec.id)
end
