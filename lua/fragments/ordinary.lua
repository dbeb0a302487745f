-- ordinary: most jobs are enqueued with nothing special, claimed once, and succeed. Their records are moved as
-- texts, without being taken apart (docs/decisions/0028).
--
-- The records, lines and counts are those of the long way, which any other record goes. Who meets a job again
-- in the same call loads what is in `texts`. Needs record, transition.
local CLAIMED, SUCCEEDED = 'claimed 1 1 0 2 0 ', 'succeeded 1 1 0 4 0 '
local CLAIMED_NOW = { status = 'claimed', attempt = 1, starts = 1, strikes = 0, version = 2, epoch = 0 }
local SUCCEEDED_NOW = { status = 'succeeded', attempt = 1, starts = 1, strikes = 0, version = 4, epoch = 0 }

local function is_known(id)              -- this call has met it already: what was read may be old
  return texts[id] or records[id] ~= nil
end

local function set_text(list, id, name, text)
  local n = #list
  list[n + 1] = name
  list[n + 2] = text
  texts[id] = text
end
