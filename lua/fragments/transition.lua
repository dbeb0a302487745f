-- transition: moves a record along one legal edge and writes the line of the log.
--
-- The table is TRANSITIONS of core/states.py; a test keeps them equal. An illegal edge raises before
-- anything is written. The record's numbers are set first, then the edge is taken, so that one state token
-- serves the record and the log. A line of the log: id from token reason [name=value ...].
local EDGES = {
  queued = { claimed = true, failed_terminal = true },
  retry_scheduled = { claimed = true, failed_terminal = true },
  claimed = { processing = true, queued = true, retry_scheduled = true, failed_terminal = true },
  processing = { succeeded = true, queued = true, retry_scheduled = true, failed_terminal = true },
  failed_terminal = { queued = true },
  succeeded = {},
}

local function step(rec, to)
  local from = rec.status
  if not EDGES[from][to] then
    error('illegal edge ' .. from .. ' -> ' .. to .. ' of job ' .. rec.id)
  end
  rec.version = rec.version + 1
  rec.status = to
  return from
end

local function transition(rec, to, reason, facts)
  local from = step(rec, to)
  touch(rec)
  local token = token_of(rec)
  rec.token = token
  if rec.begun then                      -- the line stands for claimed -> processing as well (D20)
    from, facts = 'claimed', (facts or '') .. ' started=' .. text_of[-rec.begun]
    if rec.tried ~= rec.attempt then facts = facts .. ' tried=' .. text_of[rec.tried] end
    rec.begun = nil
  end
  lines[#lines + 1] = rec.id .. ' ' .. from .. ' ' .. token .. ' ' .. reason .. (facts or '')
end
