-- record: the job's hash in memory. `load` reads it once per call, however many rows name it.
--
-- `st` is the state token: status attempt starts strikes version epoch fence lease_until. The other
-- fields have two letters (docs/reference/record.md) and exist only when set; '' counts as absent.
-- A record whose token cannot be read comes back with `bad = true`.
local HELD = { claimed = true, processing = true }
local WAITING = { queued = true, retry_scheduled = true }
local TOKEN = '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$'
local records = {}

local function place(rec)                -- the depth counter that counts this record now
  if HELD[rec.status] then return 'in_flight:' end
  if not WAITING[rec.status] then return nil end
  return (rec.en or '') ~= '' and 'queued:' or 'scheduled:'
end

local function load(id)
  local rec = records[id]
  if rec ~= nil then return rec end
  local flat = redis.call('HGETALL', JOB .. id)
  if #flat == 0 then
    records[id] = false
    return false
  end
  rec = { id = id }
  for i = 1, #flat, 2 do rec[flat[i]] = flat[i + 1] end
  records[id] = rec
  local status, attempt, starts, strikes, version, epoch, fence, lease = match(rec.st or '', TOKEN)
  if not status or not rec.la or not rec.ta then
    rec.bad = true
    return rec
  end
  rec.status, rec.attempt, rec.starts, rec.strikes = status, attempt + 0, starts + 0, strikes + 0
  rec.version, rec.epoch, rec.fence, rec.lease = version + 0, epoch + 0, fence + 0, lease + 0
  rec.was, rec.was_lane = place(rec), rec.la
  return rec
end

local function touch(rec)
  if not rec.w then
    rec.w = {}
    dirty[#dirty + 1] = rec
  end
end

local function put(rec, field, value)    -- sets one field; written by commit
  touch(rec)
  rec[field] = value
  local w = rec.w
  w[#w + 1] = field
  w[#w + 1] = value
end

local function effect(rec)
  if not rec.effect then
    rec.effect = true
    effects[#effects + 1] = rec
  end
end

local function stream_of(rec)            -- the stream and the id that the record's `en` names
  local kind, entry = match(rec.en or '', '^(%a) (%S+)$')
  if not kind then return nil end
  return LANE .. rec.la .. SUFFIX[kind], entry, kind
end

local function ack_entry(rec)            -- the entry has served: removed last of all
  local stream, entry = stream_of(rec)
  if stream then
    drop(stream, entry)
    put(rec, 'en', '')
  end
end

local function envelope(rec, sent)       -- what was sent along, else the entry's, else the body's (D8)
  if sent and sent ~= '' then return sent end
  local stream, entry = stream_of(rec)
  if stream then
    local found = redis.call('XRANGE', stream, entry, entry)[1]
    if found and found[2] and found[2][4] then return found[2][4] end
  end
  return redis.call('HGET', BODY .. rec.id, 'env')
end
