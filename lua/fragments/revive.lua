-- revive: the record of a dead job whose retention is over, from what its dead letter kept. Nobody knows the task of
-- a record that could not be read, and an empty word would make this one unreadable too.
local function revive(id, dead)
  local rec = { id = id, status = 'failed_terminal', attempt = tonumber(dead.attempt) or 0, starts = 0,
    strikes = 0, version = tonumber(dead.version) or 0, epoch = tonumber(dead.epoch) or 0, fence = '0',
    lease = '0', en = '-', la = dead.lane, was_lane = dead.lane, more = '', added = '',
    ta = (dead.task or '') ~= '' and dead.task or '-',
    at = (dead.at or '') ~= '' and dead.at or now_text }
  records[id] = rec
  for _, field in ipairs({ 'ky', 'kf', 'kw', 'ms', 'ga' }) do
    if (dead[field] or '') ~= '' then put(rec, field, dead[field]) end
  end
  if (dead.tenant or '') ~= '' then put(rec, 'tn', dead.tenant) end
  return rec
end
