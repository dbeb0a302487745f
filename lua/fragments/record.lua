-- record: the job's record in memory. `load` reads it once per call, however many rows name it.
--
-- `job:<id>` is a string of lines. The first has twelve words: the state token (status attempt starts
-- strikes version epoch fence lease_until), the entry (kind:id, or '-'), lane, task, enqueued_at. Each
-- other line is `name=value` with a name of two letters (docs/reference/record.md), only when set. One
-- GET and one SET a job: a hash cost more than twice the instructions (docs/decisions/0009).
-- A record that cannot be read comes back with `bad = true`.
local HELD = { claimed = true, processing = true }
local WAITING = { queued = true, retry_scheduled = true }
local HEAD_LINE = '^(%l[%l_]+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (%S+) (%d+)(.*)$'
local NAMES = { 'ky', 'kf', 'kw', 'dl', 'tn', 'ms', 'du', 'di', 'ow', 'sa', 'sd', 'cx', 'ec', 're', 'wa', 'fi',
  'ut', 'dq' }
local records = {}
local text_of = setmetatable({}, { __index = function(cache, number)
  local text = format('%d', number)      -- never `..` on a number: a large one would print as an exponent (R35)
  cache[number] = text
  return text
end })

local function place(rec)                -- the depth counter that counts this record now
  if HELD[rec.status] then return 'in_flight:' end
  if not WAITING[rec.status] then return nil end
  return rec.en ~= '-' and 'queued:' or 'scheduled:'
end

local function token_of(rec)
  return rec.status .. ' ' .. text_of[rec.attempt] .. ' ' .. text_of[rec.starts] .. ' ' .. text_of[rec.strikes]
    .. ' ' .. text_of[rec.version] .. ' ' .. text_of[rec.epoch] .. ' ' .. rec.fence_text .. ' '
    .. text_of[rec.lease]
end

local function read_lines(rec, lines_text)
  for name, value in string.gmatch(lines_text, '\n(%l%l)=([^\n]*)') do rec[name] = value end
end

local function load(id)
  local rec = records[id]
  if rec ~= nil then return rec end
  local raw = redis.call('GET', JOB .. id)
  if not raw then
    records[id] = false
    return false
  end
  local status, attempt, starts, strikes, version, epoch, fence, lease, en, la, ta, at, more =
    match(raw, HEAD_LINE)
  if status then                         -- all that is used later stands in the constructor: no rehashing
    rec = { id = id, status = status, attempt = attempt + 0, starts = starts + 0, strikes = strikes + 0,
      version = version + 0, epoch = epoch + 0, fence = fence + 0, lease = lease + 0, fence_text = fence,
      en = en, la = la, ta = ta, at = at, more = more, saved = false, token = false, effect = false,
      retire = false, was = false, was_lane = la, ow = nil, sd = nil }
    rec.was = place(rec)
    if more ~= '' then read_lines(rec, more) end
  else
    rec = { id = id, bad = true, raw = raw, en = '-', more = '' }
    read_lines(rec, raw)
  end
  records[id] = rec
  return rec
end

local function touch(rec)                -- to be saved; its numbers may have changed
  rec.token = false
  if not rec.saved then
    rec.saved = true
    dirty[#dirty + 1] = rec
  end
end

local function put(rec, field, value)    -- sets one field; '' takes it away
  if not rec.saved then touch(rec) end
  if rec[field] == nil then
    rec.more = rec.more .. '\n' .. field .. '=' .. value
  else
    rec.rebuild = true
  end
  rec[field] = value
end

local function line_of(rec)              -- the record as it is written
  local more = rec.more
  if rec.rebuild then
    more = ''
    for i = 1, #NAMES do
      local value = rec[NAMES[i]]
      if value and value ~= '' then more = more .. '\n' .. NAMES[i] .. '=' .. value end
    end
  end
  return (rec.token or token_of(rec)) .. ' ' .. rec.en .. ' ' .. rec.la .. ' ' .. rec.ta .. ' ' .. rec.at .. more
end

local function effect(rec)
  if not rec.effect then
    rec.effect = true
    effects[#effects + 1] = rec
  end
end

local function stream_of(rec)            -- the stream and the id that the record's entry names
  local en = rec.en
  if en == '-' then return nil end
  return LANE .. rec.la .. SUFFIX[sub(en, 1, 1)], sub(en, 3)
end

local function holder(rec)               -- worker id and session of its claim
  local worker, session = match(rec.ow or '', '^(%S+) (%S+)$')
  return worker or '-', tonumber(session or '0')
end

local function ack_entry(rec)            -- the entry has served: removed last of all
  local stream, entry = stream_of(rec)
  if stream then
    drop(stream, entry)
    touch(rec)
    rec.en = '-'
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
