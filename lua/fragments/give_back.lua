-- give_back: a held entry goes back to its holder, as idle as its lease is old (D6).
--
-- A sweep finds it when the lease runs out: an entry that looked fresh would be left alone for a lease more.
local function give_back(rec, stream, entry)
  local idle = math.max(0, lease_ms - (tonumber(rec.lease) - now))
  redis.call('XCLAIM', stream, 'workers', (holder(rec)), 0, entry, 'IDLE', format('%d', idle), 'JUSTID')
end
