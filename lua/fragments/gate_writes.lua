-- gate_writes: what `commit` writes of the gates. What is added comes before the records, what is taken away
-- after them, so that an error between leaves a job in two places, of which its record honours one (D3).
local function in_chunks(command, key, list)
  for i = 1, #list, CHUNK do
    redis.call(command, key, unpack(list, i, math.min(i + CHUNK - 1, #list)))
  end
end

local function split(changes)            -- what is added, each after its score, and what is taken away
  local added, gone, n = {}, {}, 0
  for member, score in pairs(changes) do
    if score then
      n = n + 2
      added[n - 1], added[n] = score, member
    else
      gone[#gone + 1] = member
    end
  end
  return added, gone
end

local function by_lane(gate)             -- the changes of each lane's waiters
  local lanes = {}
  for id, one in pairs(gate.moved) do
    lanes[one.lane] = lanes[one.lane] or {}
    lanes[one.lane][id] = one.place and format('%d', one.place) or false
  end
  return lanes
end

local function count_text(gate)
  local text = {}
  for lane, count in pairs(gate.waits) do
    if count > 0 then text[#text + 1] = lane .. ' ' .. format('%d', count) end
  end
  return table.concat(text, ' ')
end

local function pauses_text()
  local text = {}
  for scope, pause in pairs(pauses) do
    local ramp = pause.state == 'ramp' and format(',%d,%d', pause.waiting, pause.length) or ''
    text[#text + 1] = scope .. ' ' .. pause.state .. ramp .. ' ' .. format('%d', pause.till) .. pause.more
  end
  table.sort(text)
  return table.concat(text, '\n')
end

local function write_gates()
  in_chunks('ZADD', TIMERS, (split(timers)))             -- first: looking in vain is harmless, never looking is not
  for _, gate in ipairs(in_order) do
    local added
    added, gate.gone = split(gate.change)
    in_chunks('ZADD', gate.key, added)
    if next(gate.moved) then
      for lane, changes in pairs(by_lane(gate)) do
        in_chunks('ZADD', WAITING_AT .. lane .. ':' .. gate.name, (split(changes)))
      end
    end
    if gate.rewrite then write_bucket(gate) end
    if gate.recount and gate.total > 0 then redis.call('HSET', WAITERS, gate.name, count_text(gate)) end
  end
  if breakers then breakers.write() end
  if settings then settings.write() end
  if pauses_changed and next(pauses) then redis.call('SET', PAUSES, pauses_text()) end
  if last_place then redis.call('HSET', STATS, 'places', format('%d', last_place)) end
end

local function clean_gates()
  for _, gate in ipairs(in_order) do
    in_chunks('ZREM', gate.key, gate.gone)
    if next(gate.moved) then
      for lane, changes in pairs(by_lane(gate)) do
        local _, gone = split(changes)
        in_chunks('ZREM', WAITING_AT .. lane .. ':' .. gate.name, gone)
      end
    end
    if gate.recount and gate.total == 0 then redis.call('HDEL', WAITERS, gate.name) end
  end
  if pauses_changed and not next(pauses) then redis.call('DEL', PAUSES) end
  local _, gone = split(timers)
  in_chunks('ZREM', TIMERS, gone)
end
