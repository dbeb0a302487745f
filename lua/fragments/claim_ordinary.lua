-- claim_ordinary: queued -> claimed of a job in arrivals that was never claimed and waits for nothing.
--
-- Needs fragments/ordinary.lua, and what claim_step has set up. Nothing is paused: who calls has looked.
local NO_MORE, KEYED = '^(%S+) (%d+)$', '^(%S+) (%d+)\nky=[^\n]*\nkf=[^\n]*\nkw=[^\n]*$'
local OWNED = '\now=' .. holding
local ordinary_of = {}                   -- what a record says after its lane -> its task, and how the claim's head ends

local function ordinary(rest)            -- many jobs of a call share it; nil: there is more to it
  local known = ordinary_of[rest]
  if known then return known end
  local task, at = match(rest, NO_MORE)
  if not task then task, at = match(rest, KEYED) end
  if not task then return nil end
  known = { task = task, words = ' ' .. since(at) .. ' - -' }
  ordinary_of[rest] = known
  return known
end

local function take_ordinary(from, entry, id, name, env, raw) -- false: it is to go the long way
  if not raw or is_known(id) then return false end
  local start = 'queued a:' .. entry .. from.between
  if find(raw, start, 1, true) ~= 1 then return false end
  local rest = sub(raw, #start + 1)
  local known = ordinary(rest)
  if not known then return false end
  local row = from.row                   -- it has a slot, since no more were read than there are
  if row.free > 0 then row.free = row.free - 1 else shared_left = shared_left - 1 end
  left = left - 1
  local token = CLAIMED .. next_fence() .. ' ' .. lease_until
  if says('queued', 'claimed') and said.head == CLAIMED then
    lines[#lines + 1] = id .. ' = ' .. fence_text
    said.line = #lines
  else
    lines[#lines + 1] = id .. ' queued ' .. token .. ' claimed'
    say('queued', CLAIMED_NOW, 'claimed', CLAIMED)
  end
  set_text(open_texts, id, name, token .. ' a:' .. entry .. from.between .. rest .. OWNED)
  local n = #claims
  claims[n + 1] = token .. from.words .. entry .. known.words
  claims[n + 2] = id
  claims[n + 3] = env
  from.claimed[known.task] = (from.claimed[known.task] or 0) + 1
  return true
end

local function count_ordinary(from)
  for task, count in pairs(from.claimed) do
    count_move('queued:' .. from.lane, task, -count)
    count_move('in_flight:' .. from.lane, task, count)
  end
end
