-- recover: looks through one lane stream for claims whose lease ran out, by XAUTOCLAIM with a kept cursor.
--
-- What it finds dead is decided in Python and committed through `settle`. `lease_until` in the record
-- decides, never the idle time in the PEL (D6). After an outage of ours or of Redis nothing is recovered
-- for one lease, so that healthy holders can renew; that hold adds up across restarts.
-- Replies  { hold left in ms, 1 if the stream's pass is complete else 0, { candidate, ... } }
local tag          = KEYS[1]             -- hash tag of the shard
local clock        = ARGV[1]             -- ms, or '' for Redis TIME
local worker       = ARGV[2]             -- the sweeper
local lease_ms     = ARGV[3]             -- lease of the namespace
local retention_ms = ARGV[4]             -- how long a finished record stays
local lane         = ARGV[5]             -- which lane
local kind         = ARGV[6]             -- a arrivals, r ready, q quarantine
local count        = ARGV[7]             -- entries looked at, at most 100 (R5)
local script, actor = 'recover', worker
-- include: fragments/base.lua
-- include: fragments/record.lua
-- include: fragments/transition.lua
-- include: fragments/make_ready.lua
-- include: fragments/gates.lua
-- include: fragments/turnstile.lua
-- include: fragments/finish.lua
-- include: fragments/commit.lua
-- include: fragments/candidate.lua
-- include: fragments/give_back.lua
local lease = tonumber(lease_ms)
local stream = LANE .. lane .. SUFFIX[kind]

local function hold_left()               -- the outage rule of D6
  local last = tonumber(redis.call('HGET', SWEEP, 'at') or '')
  local hold = tonumber(redis.call('HGET', SWEEP, 'hold') or '0')
  local gap = last and now - last or nil
  if not gap or gap < 0 or gap > lease or hold <= 0 and gap > lease / 2 then
    if hold <= 0 then hold = lease end
  elseif gap > lease / 2 then            -- half a lease of it counts, else who always sweeps late would never recover
    hold = math.max(0, hold - math.floor(lease / 2))
  else
    hold = math.max(0, hold - gap)
  end
  redis.call('HSET', SWEEP, 'at', format('%d', now), 'hold', format('%d', hold))
  return hold
end

local function judge(entry, id, env, found)
  local rec = load(id)
  if not rec then bump('claims:missing', 1); return drop(stream, entry) end
  if rec.bad then return end             -- left to a claim, which keeps it as a dead letter
  if rec.en ~= kind .. ':' .. entry or rec.la ~= lane then
    bump('claims:conflict', 1)
    return drop(stream, entry)
  end
  if WAITING[rec.status] then            -- delivered and never claimed: nothing is charged
    ack_entry(rec)
    return make_ready(rec, env)
  end
  if not HELD[rec.status] then bump('claims:final', 1); return drop(stream, entry) end
  if tonumber(rec.lease) > now + 2 * lease then -- a clock that jumped back must not hold a job for years
    rec.lease = format('%d', now + 2 * lease)
    touch(rec)
  end
  if tonumber(rec.lease) > now then return give_back(rec, stream, entry) end
  -- It stays ripe: should its sweeper die before it commits, the next sweep finds the claim, not the next lease.
  redis.call('XCLAIM', stream, 'workers', worker, 0, entry, 'IDLE', lease_ms, 'JUSTID')
  found[#found + 1] = candidate(rec)
end

redis.call('PERSIST', FENCE)             -- allowed under OOM, so the rest is too (R31)
local hold = hold_left()
if hold > 0 then return { format('%d', hold), 1, {} } end

local cursor = redis.call('HGET', SWEEP, 'cursor:' .. lane .. ':' .. kind) or '0-0'
local swept = redis.pcall('XAUTOCLAIM', stream, 'workers', worker, lease_ms, cursor, 'COUNT', count)
if swept.err then                        -- no stream or no group yet: nothing is pending there (R9)
  if not string.find(swept.err, 'NOGROUP', 1, true) then error(swept.err) end
  return { '0', 1, {} }
end
local found = {}
for i = 1, #swept[2] do
  local entry, fields = swept[2][i][1], swept[2][i][2]
  if fields then judge(entry, fields[2], fields[4], found) end
end
if swept[3] and #swept[3] > 0 then       -- deleted under us: `repair` finds their records (R1)
  bump('claims:missing', #swept[3])
end
redis.call('HSET', SWEEP, 'cursor:' .. lane .. ':' .. kind, swept[1])
commit()
return { '0', swept[1] == '0-0' and 1 or 0, found }
