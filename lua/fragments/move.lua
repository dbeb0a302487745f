-- move: along no edge of the table, from where a job was to where it is again; a line of the log all the same.
local function move(rec, to, reason, facts)
  local from = rec.status
  rec.version, rec.status = rec.version + 1, to
  touch(rec)
  rec.token = token_of(rec)
  lines[#lines + 1] = rec.id .. ' ' .. from .. ' ' .. rec.token .. ' ' .. reason .. facts
end
