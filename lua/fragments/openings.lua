-- openings: waiters are let in as far as there is room, and after a pause evenly over its ramp.
local STEP_MS = 250                      -- between two steps of a pause that opens
local RAMP_MS = 60000                    -- how long a pause that ran out takes to open

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
