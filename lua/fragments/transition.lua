-- transition: moves a record along one legal edge and writes the line of the log.
--
-- The table is TRANSITIONS of core/states.py; a test keeps them equal. An illegal edge raises before
-- anything is written. A line: id epoch version from to offset attempt fence reason
-- [name=value ...], where offset is the moment in ms relative to the entry's `t`.
local EDGES = {
  queued = { claimed = true, failed_terminal = true },
  retry_scheduled = { claimed = true, failed_terminal = true },
  claimed = { processing = true, queued = true, retry_scheduled = true, failed_terminal = true },
  processing = { succeeded = true, queued = true, retry_scheduled = true, failed_terminal = true },
  failed_terminal = { queued = true },
  succeeded = {},
}

local function transition(rec, to, reason, at, tail)
  local from = rec.status
  if not EDGES[from][to] then
    error('illegal edge ' .. from .. ' -> ' .. to .. ' of job ' .. rec.id)
  end
  touch(rec)
  rec.version = rec.version + 1
  rec.status = to
  lines[#lines + 1] = format('%s %d %d %s %s %d %d %d %s%s', rec.id, rec.epoch, rec.version, from, to,
    at - now, rec.attempt, rec.fence, reason, tail or '')
end
