-- grants: a waiter becomes a holder before it enters ready, so that nobody overtakes it (D12).
--
-- What was granted stands in the record as well, `hg= name name `. A grant that nobody claims within 5 s goes
-- to the next, but for an entity's: its order would be lost.
local UNCLAIMED_MS = 5000
local budget = 100                       -- grants of one call (R32)

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

local open_breakers                      -- see openings.lua

local function has_places(gate)          -- whether who passes it holds it
  return gate.kind ~= 'pause' and (gate.kind ~= 'breaker' or open_breakers().probing(gate.name))
end

local function give(gate, rec, env)      -- the waiter becomes a holder and enters ready
  move_out(gate, rec.la, rec.id)
  rec.en = '-'
  if has_places(gate) then
    add_holder(gate, rec.id, format('%d', -place_of(rec)))
    put(rec, 'hg', ((rec.hg or '') == '' and ' ' or rec.hg) .. gate.name .. ' ')
  end
  if (rec.hg or '') ~= '' then watch_grants(rec) end
  make_ready(rec, env)
  rec.keep_env, rec.unpark = nil, true
  budget = budget - 1
end
