-- heartbeat: extends the leases that are still ours; names the lost and the cancelled.
--
-- Also extends an expired lease that nobody took. Renews the pending entry together with the lease (D20).
-- Replies  { OK | NOSESSION, { lost id, ... }, { cancelled id, code, ... } }
local tag         = KEYS[1]              -- hash tag of the shard
local clock       = ARGV[1]              -- ms, or '' for Redis TIME
local worker      = ARGV[2]              -- worker id: the consumer name
local lease_ms    = ARGV[3]              -- lease from now
local liveness_ms = ARGV[4]              -- life of the worker key without a heartbeat
-- rows: id fence
-- include: fragments/base.lua
-- include: fragments/record.lua
local lost, cancelled, renew = {}, {}, {}
redis.call('PERSIST', FENCE)             -- allowed under OOM, so the rest is too (R31)
for i = 5, #ARGV, 2 do
  local id, fence = ARGV[i], ARGV[i + 1]
  local rec = load(id)
  if rec and not rec.bad and HELD[rec.status] and rec.fence == fence then
    rec.lease = format('%d', now + lease_ms)
    redis.call('SET', JOB .. id, line_of(rec))
    local stream, entry = stream_of(rec)
    if stream then
      renew[stream] = renew[stream] or {}
      table.insert(renew[stream], entry)
    end
    if (rec.cx or '') ~= '' then
      cancelled[#cancelled + 1] = id
      cancelled[#cancelled + 1] = rec.cx
    end
  else
    lost[#lost + 1] = id
  end
end
for stream, entries in pairs(renew) do
  for i = 1, #entries, CHUNK do
    local call = { 'XCLAIM', stream, 'workers', worker, 0 }
    for j = i, math.min(i + CHUNK - 1, #entries) do call[#call + 1] = entries[j] end
    call[#call + 1] = 'JUSTID'           -- leaves the delivery counter alone (R12, R13)
    redis.pcall(unpack(call))            -- a stream or group that is gone is found by the next claim (R9)
  end
end
local alive = redis.call('PEXPIRE', WORKER .. worker, liveness_ms)
return { alive == 1 and 'OK' or 'NOSESSION', lost, cancelled }
