-- gate_timers: gates and settings whose time has come, lanes that were paused or resumed, and what `repair` asks.
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

local settings                           -- what operators have set, once something of it matters

local function open_settings()
  if settings then return settings end
-- include: fragments/settings.lua
  return settings
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
    elseif what == 'setting' then
      open_settings().expire(rest)
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
    if gate.kind ~= 'rate' and gate.kind ~= 'pause' then drop_false_holders(gate) end
  end
  return redis.call('ZSCORE', WAITING_AT .. rec.la .. ':' .. gate.name, rec.id)
end
