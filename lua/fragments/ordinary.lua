-- ordinary: most jobs are enqueued with nothing special, claimed once and succeed. Their records are moved as texts,
-- without being taken apart: the same records, lines and counts as by `transition`, for half of the work.
--
-- What is not exactly such a record goes the long way. A call that meets such a job again finds its new record
-- in `texts` (docs/decisions/0028).
local CLAIMED, SUCCEEDED = 'claimed 1 1 0 2 0 ', 'succeeded 1 1 0 4 0 '
local CLAIMED_NOW = { status = 'claimed', attempt = 1, starts = 1, strikes = 0, version = 2, epoch = 0 }
local SUCCEEDED_NOW = { status = 'succeeded', attempt = 1, starts = 1, strikes = 0, version = 4, epoch = 0 }

local function is_known(id)              -- this call has moved it already
  return texts[id] or records[id] ~= nil
end

local function set_text(list, id, name, text)
  local n = #list
  list[n + 1] = name
  list[n + 2] = text
  texts[id] = text
end
