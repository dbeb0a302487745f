-- waiters: who waits at a gate, by place, and who of them comes next (D12).
--
-- Waiters of a lane stand in a zset of their own, so that the urgent lane can go first and a paused one does
-- not count. Somebody who was parked or let in by this very call counts as it will be written.
local WINDOW = 16                        -- waiters of a lane read at a time
local DEAD = 100                         -- waiters of one gate that are looked at and found gone, in one call

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
  local mine = first_place(rec)
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
