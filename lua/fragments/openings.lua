-- openings: waiters are let in as far as there is room, and after a pause evenly over its ramp.
local STEP_MS = 250                      -- between two steps of a pause that opens
local RAMP_MS = 60000                    -- how long a pause that ran out takes to open

local function room(gate, word)
  if word.kind == 'rate' then return tokens_left(gate, word) end
  if word.kind == 'breaker' then return open_breakers().places(word) - count_of(gate) end
  local figures = figures_of(word)
  local most = word.kind == 'entity' and 1 or word.most
  if not most then error('the figures of ' .. word.name .. ' cannot be read: ' .. figures) end
  return most - count_of(gate)
end

-- A ramp: of `waiting` jobs when it began, waiting * left / length still wait when `left` of its ms are left. What
-- arrives meanwhile lets as many more in, so a ramp makes no queue longer, however short it was.
local function lets_in(ramp, total)      -- how many of the `total` that wait now may come in by now
  local left = ramp and ramp.till - now or 0
  if left <= 0 or left > ramp.length then return total end -- over, or begun by a clock that was ahead
  return total - math.max(0, math.ceil(ramp.waiting * left / ramp.length) - 1)
end

local function let_in(gate, ramp)        -- as many as the ramp says; it is over when nobody waits any more
  waits_of(gate)
  local count = lets_in(ramp, gate.total)
  for _ = 1, math.min(count, budget) do
    local rec, env = next_waiter(gate)
    if not rec then break end
    give(gate, rec, env)
  end
  if gate.total > 0 and next_up(gate) then
    local due = now + 1                  -- there are more than one call may move
    if lets_in(ramp, gate.total) <= 0 then
      due = math.max(now + STEP_MS, ramp.till - math.floor(gate.total * ramp.length / ramp.waiting))
    end
    timers[gate.name] = format('%d', due)
  end
  return gate.total == 0
end

local function held_back(scope)          -- how many wait for a pause; those of a lane stay in its streams
  local lane = match(scope, '^lane:(.*)$')
  if lane then
    local counts = redis.call('HMGET', STATS, 'queued:' .. lane, 'turned:' .. lane)
    return math.max(0, tonumber(counts[1] or '0') + tonumber(counts[2] or '0'))
  end
  local gate = gate_of('pause:' .. scope)
  waits_of(gate)
  return gate.total
end

local function lift(scope, ramp_ms)      -- a pause is over: who waits comes in over that time
  local pause, is_lane = paused(scope), sub(scope, 1, 5) == 'lane:'
  local waiting = held_back(scope)
  if is_lane then timers[scope] = now_text end             -- its waiters at gates count again
  if is_lane and (waiting == 0 or ramp_ms == 0) then
    set_pause(scope, nil)
  else
    set_pause(scope, 'ramp', now + ramp_ms, pause and pause.more or '', waiting, ramp_ms)
    timers['pause:' .. scope] = is_lane and format('%d', now + ramp_ms) or now_text
  end
end

local function share_of(lane)            -- how many of a lane's jobs may start now; nil: as many as there are
  local pause = paused('lane:' .. lane)
  if not pause or pause.state == 'ramp' and pause.till <= now then return nil end
  if pause.state == 'paused' then return 0, 'paused' end
  return lets_in(pause, held_back('lane:' .. lane)), 'ramp'
end

local function open_up(gate)             -- a pause whose time has come, or that was lifted
  local scope = sub(gate.name, 7)
  local pause = paused(scope)
  if pause and pause.state == 'paused' then
    if pause.till > now then
      timers[gate.name] = format('%d', pause.till)
    elseif pause.till > 0 then
      lift(scope, RAMP_MS)
    end
  elseif let_in(gate, pause) and pause then
    set_pause(scope, nil)
  end
end

function open_breakers()
  if breakers then return breakers end
-- include: fragments/breakers.lua
  return breakers
end

local function grant(gate)               -- as far as there is room and somebody waits
  if gate.kind == 'pause' then return open_up(gate) end
  if gate.kind == 'breaker' and not has_places(gate) then return open_breakers().let_in(gate) end
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
