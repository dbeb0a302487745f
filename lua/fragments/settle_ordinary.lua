-- settle_ordinary: claimed -> processing -> succeeded of a job of which its record says nothing but who holds it,
-- in its first claim, out of arrivals.
--
-- Needs fragments/ordinary.lua.
local CLAIMED_ONCE = '^claimed 1 1 0 2 0 (%d+) %d+ a:(%S+) (%S+) (%S+) (%d+\now=[^\n]*)$'

local function settle_ordinary(id, name, raw, fence, started_ago, reason, result) -- false: it is to go the long way
  if not raw or is_known(id) then return false end
  local held, entry, lane, task, more = match(raw, CLAIMED_ONCE)
  if held ~= fence then return false end
  if #result > SMALL or find(result, '\n', 1, true) then return false end
  local ago = text_of[-started_ago]
  if says('claimed', reason) and said.head == SUCCEEDED then
    lines[#lines + 1] = id .. ' = ' .. fence .. ' ' .. ago
    said.line = #lines
  else
    lines[#lines + 1] = id .. ' claimed ' .. SUCCEEDED .. '0 0 ' .. reason .. ' fence=' .. fence .. ' started=' .. ago
    say('claimed', SUCCEEDED_NOW, reason, SUCCEEDED)
  end
  local text = SUCCEEDED .. '0 0 - ' .. lane .. ' ' .. task .. ' ' .. more .. '\nsd=' .. fence .. ' succeeded own '
    .. text_of[now - started_ago] .. ' ' .. now_text
  if result ~= '' then
    if mirrored() then tell('r', result) end
    text = text .. '\nre=' .. result
  end
  set_text(over_texts, id, name, text)
  count_move('in_flight:' .. lane, task, -1)
  drop(LANE .. lane, entry)
  return true
end
