-- passing: a claim passes all gates of a job or none; who is blocked is parked at the first that is shut.
--
-- A job passes a gate that it was granted, or that has room while nobody with an earlier place waits there,
-- or whose unclaimed grant to a later place it takes over (D12).
local victims                            -- gate name -> who loses its grant to the job that is looked at

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
  local mine = first_place(rec)
  if not mine then return false end
  local latest = redis.call('ZRANGEBYSCORE', gate.key, '-inf', format('(%d', -mine), 'LIMIT', 0, 8)
  for _, id in ipairs(latest) do
    local other = gate.change[id] == nil and load(id)
    if other and stream_of(other) and is_granted(other, gate.name) and envelope(other) then
      victims = victims or {}
      victims[gate.name] = other
      return true
    end
  end
  return false
end

local function has_what_was_promised(gate, word)         -- a token is spent only now; a clock may have gone back
  if word.kind ~= 'rate' then return true end
  local level, _, period = fill(gate, word)
  return level >= period
end

local function is_open(gate, word, rec)
  if (rec.hg or '') ~= '' and is_granted(rec, gate.name) then return has_what_was_promised(gate, word) end
  local left = room(gate, word)
  if left < 1 and not gate.checked then
    gate.checked = true
    if word.kind ~= 'rate' then drop_false_holders(gate) end
    left = room(gate, word)
  end
  if left < 1 then
    return has_what_was_promised(gate, word) and not someone_earlier(gate, rec) and may_take_over(gate, rec)
  end
  if someone_earlier(gate, rec) then return false end
  if gate.total == 0 then gate.spare, gate.spare_for = left, word end
  return true
end

local function stops(rec, scope)
  local pause = paused(scope)
  if not pause then return false end
  return pause.state == 'paused' or someone_earlier(gate_of('pause:' .. scope), rec)
end

local function breaks(word, rec)         -- a breaker that is not closed: few may try, or who waits goes first
  local gate, one = gate_at(word), open_breakers().at(word.name)
  if not one then return false end
  if one.state == 'half_open' then return not is_open(gate, word, rec) end
  return one.state == 'open' or someone_earlier(gate, rec)
end

local function is_shut(word, rec)
  if word.kind == 'pause' then return something_is_paused() and stops(rec, sub(word.name, 7)) end
  if word.kind == 'breaker' then return (breakers or tripped()) and breaks(word, rec) end
  return not is_open(gate_at(word), word, rec)
end

local function first_shut(rec)           -- the first gate that it cannot pass now, or nil
  if something_is_paused() then
    if stops(rec, 'task:' .. rec.ta) then return gate_of('pause:task:' .. rec.ta) end
    if (rec.tn or '') ~= '' and stops(rec, 'tenant:' .. rec.tn) then return gate_of('pause:tenant:' .. rec.tn) end
  end
  local list = gates_of(rec)
  for i = 1, #list do
    local word = list[i]
    local gate = word.gate
    if not (gate and gate.spare_for == word and gate.spare > 0) and is_shut(word, rec) then return gate_at(word) end
  end
  return nil
end

local function opens(gate)               -- a pause that was lifted: who comes lets another one in
  local pause = paused(sub(gate.name, 7))
  return pause and pause.state == 'ramp'
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
  if gate.kind == 'entity' then bump('contended:' .. rec.la .. ':' .. rec.ta, 1) end
  if gate.kind ~= 'pause' or opens(gate) then gate.touched = true end
  audit[#audit + 1] = rec.id .. ' ' .. text_of[rec.epoch] .. ' parked:' .. gate.name
end

local function lose(rec, word)           -- its grant goes to an earlier place: it waits again, at the first that it lost
  if stream_of(rec) then return wait_at(rec, envelope(rec), word.gate) end
  return_grants(rec, function(name) return name ~= word.name end)
end

local function try(rec, gate, granted)   -- a breaker that few may try: it holds a place until it ends
  if granted then drop_holder(gate, rec.id) end            -- it may be closed by now
  if not has_places(gate) then return '' end
  add_holder(gate, rec.id, now_text)
  return gate.name .. ' '
end

local function enter(rec)                -- holds everything from now on; a rate is charged only here
  local granted, tries = (rec.hg or '') ~= '', ''
  local list = gates_of(rec)
  for i = 1, #list do
    local word = list[i]
    local gate, victim = word.gate, victims and victims[word.name]
    if victim then lose(victim, word) end                -- at once, so that nobody overtakes it
    if word.kind == 'rate' then
      if granted and is_granted(rec, word.name) then drop_holder(gate, rec.id) end
      take_token(gate, word)
    elseif word.lock then
      if word.kind == 'entity' then place_of(rec) end      -- a retry comes back to this place (D16)
      if granted and is_granted(rec, word.name) then gate.change[rec.id] = now_text
      else add_holder(gate, rec.id, now_text) end
    elseif word.kind == 'breaker' and (granted or breakers) then
      tries = tries .. try(rec, gate_at(word), granted and is_granted(rec, word.name))
    end
    if gate and gate.spare then gate.spare = gate.spare - 1 end
  end
  if granted then timers['grant:' .. rec.id] = false end
  if granted or tries ~= '' then put(rec, 'hg', tries ~= '' and ' ' .. tries or '') end
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
        bump('contended:' .. row.lane .. ':' .. row.task, 1)
      end
    end
  end
end

local function pass(rec, env)            -- true: it may be claimed; false: it is parked
  victims = nil
  local gate = first_shut(rec)
  if gate then wait_at(rec, env, gate) else enter(rec) end
  return not gate
end

local function sort_out(rec)             -- its gates are others now: it keeps what it still needs
  return_grants(rec, function(name) return word_of(rec, name) end)
  if rec.hg == '' then timers['grant:' .. rec.id] = false end
end

local function leave(rec)                -- a waiting job that ends: its place and its grants are free
  local gate = waits_at(rec)
  if gate then
    move_out(gate, rec.la, rec.id)
    gate.touched = true                  -- who comes next moves up; a pause that opens is over with its last
    rec.en = '-'
  end
  if (rec.hg or '') ~= '' then
    return_grants(rec, nothing)
    timers['grant:' .. rec.id] = false
  end
end

-- Whether a job whose claim ends keeps its entity: if that is strict, or if the job goes to its stream at
-- once, as after a crash, and nobody was before it.
local function stays(word, rec, at_once)
  return figures_of(word) == 'strict' or at_once and not someone_earlier(word.gate, rec)
end

local function free(rec, at_once)        -- a claim ends, and its locks are free
  local list, kept = gates_of(rec), ''
  for i = 1, #list do
    local word = list[i]
    if word.lock then
      local gate = gate_at(word)
      if word.kind == 'entity' and stays(word, rec, at_once) then
        gate.change[rec.id] = format('%d', -place_of(rec))
        kept = ' ' .. word.name .. ' '
        if figures_of(word) ~= 'strict' then timers['grant:' .. rec.id] = 'inf' end
      else
        drop_holder(gate, rec.id)
      end
    elseif word.kind == 'breaker' and is_granted(rec, word.name) then
      drop_holder(gate_at(word), rec.id)                   -- the next may try
    end
  end
  if kept ~= (rec.hg or '') then put(rec, 'hg', kept) end
end
