-- candidate: what Python needs to decide the fate of a claim that was found dead (D6).
local function candidate(rec)
  return format('%s %s %s %d %s %d %d %d %s %s %s', rec.id, rec.fence, rec.lease, rec.version, rec.status,
    rec.attempt, rec.starts, rec.strikes, rec.la, rec.ta, (holder(rec)))
end
