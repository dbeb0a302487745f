-- record: the job's record in memory. `load` reads it once per call, however many rows name it; `preload`
-- reads many at once.
--
-- `job:<id>` is a string of lines. The first has twelve words: the state token (status attempt starts
-- strikes version epoch fence lease_until), the entry (kind:id of a stream's, g:name of the gate where the job
-- is parked, else '-'), lane, task, enqueued_at; the record of a job that never moved leaves the seven numbers
-- out. Each other line is `name=value` with a name of two letters (docs/reference/record.md), only when set.
-- One GET and one SET a job: a hash cost more than twice the instructions (docs/decisions/0009).
-- A record that cannot be read comes back with `bad = true`.

-- With the depth counter of its jobs; of those that wait, by the first letter of the record's entry.
local HELD, WAITING = { claimed = 'in_flight:', processing = 'in_flight:' }, {}
WAITING.queued = { a = 'queued:', r = 'queued:', q = 'queued:', t = 'turned:', g = 'parked:', b = 'backlog:',
  ['-'] = 'scheduled:' }
WAITING.retry_scheduled = WAITING.queued
local FIRST_LINE = '^(%l[%l_]+ %d+ %d+ %d+ %d+ %d+) (%d+) (%d+) (%S+) (%S+) (%S+) (%d+)()'
local NEW_LINE = '^queued ([%l-]%S*) (%S+) (%S+) (%d+)()'
local NEW, COUNTERS = 'queued 0 0 0 1 0', '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+)$'
local ONE_LINE = '^\n(%l%l)=([^\n]*)$'
local NAMES = { 'ky', 'kf', 'kw', 'dl', 'tn', 'ms', 'du', 'di', 'ow', 'sa', 'sd', 'cx', 'ec', 're', 'wa', 'fi',
  'ut', 'dq', 'ga', 'pl', 'hg', 'bu', 'bl',
  'mk', 'rs' }
local records = {}
local texts = {}                         -- id -> record as it is to be written, of those that `ordinary` moved
local open_texts, over_texts = {}, {}    -- their names and records, in order: of open jobs, and of finished ones
local moved = {}                         -- depth counter of a lane -> task -> change
-- What many jobs of a call have in common is converted once.
local text_of = setmetatable({}, { __index = function(cache, number)
  local text = format('%d', number)      -- never `..` on a number: a large one would print as an exponent (R35)
  cache[number] = text
  return text
end })
local parsed = {}

local function counters_of(text)         -- status and the five small numbers of a state token
  local found = parsed[text]
  if not found then
    local status, attempt, starts, strikes, version, epoch = match(text, COUNTERS)
    found = { status, attempt + 0, starts + 0, strikes + 0, version + 0, epoch + 0 }
    parsed[text] = found
  end
  return found
end

local function place(status, en)         -- the depth counter that counts a record now; none when it is over
  local waits = WAITING[status]
  return waits and waits[sub(en, 1, 1)] or HELD[status]
end

local function count_move(field, task, by)
  local tasks = moved[field]
  if not tasks then tasks = {}; moved[field] = tasks end
  tasks[task] = (tasks[task] or 0) + by
end

local function head_of(rec)              -- the state token without fence and lease
  return rec.status .. ' ' .. text_of[rec.attempt] .. ' ' .. text_of[rec.starts] .. ' ' .. text_of[rec.strikes]
    .. ' ' .. text_of[rec.version] .. ' ' .. text_of[rec.epoch] .. ' '
end

local function token_of(rec)
  return head_of(rec) .. rec.fence .. ' ' .. rec.lease
end

local function read_lines(rec, lines_text)
  local at = 1                           -- patterns would look at each letter of the long lines
  repeat
    local stop = find(lines_text, '\n', at + 1, true)
    rec[sub(lines_text, at + 1, at + 2)] = sub(lines_text, at + 4, (stop or 0) - 1)
    at = stop
  until not stop
end

local function preload(ids)              -- what `load` takes with each id, and names: one read for up to 500 of them
  local names = {}
  if #ids == 0 or #ids > CHUNK then return {}, names end
  for i = 1, #ids do names[i] = JOB .. ids[i] end
  return redis.call('MGET', unpack(names)), names
end

local function load(id, raw)             -- nil: not read yet; false: there is none
  local rec = records[id]
  if rec ~= nil then return rec end
  if texts[id] then raw = texts[id] end
  if raw == nil then raw = redis.call('GET', JOB .. id) end
  if not raw then
    records[id] = false
    return false
  end
  local counted, fence, lease = NEW, '0', '0'
  local en, la, ta, at, rest = match(raw, NEW_LINE)
  if not en then
    counted, fence, lease, en, la, ta, at, rest = match(raw, FIRST_LINE)
  end
  if counted then
    local numbers = counters_of(counted)
    local more = sub(raw, rest)
    local status = numbers[1]
    -- More than 16 fields here: the others then find room without a new table.
    rec = { id = id, status = status, attempt = numbers[2], starts = numbers[3], strikes = numbers[4],
      version = numbers[5], epoch = numbers[6], fence = fence, lease = lease, en = en, la = la, ta = ta, at = at,
      more = more, added = '', was = place(status, en), was_lane = la }
    if more ~= '' then read_lines(rec, more) end
  else
    rec = { id = id, bad = true, raw = raw, en = '-', more = '', added = '' }
    read_lines(rec, raw)
  end
  records[id] = rec
  return rec
end

local function touch(rec)                -- to be saved; its numbers may have changed
  rec.token = nil
  if not rec.saved then
    rec.saved = true
    dirty[#dirty + 1] = rec
  end
end

local function put(rec, field, value)    -- sets one field; '' takes it away
  if not rec.saved then touch(rec) end
  if rec[field] == nil then
    rec.added = rec.added .. '\n' .. field .. '=' .. value
  else
    rec.rebuild = true
  end
  rec[field] = value
end

local function line_of(rec)              -- the record as it is written
  local more, added = rec.more, rec.added
  if rec.rebuild then
    more, added = '', ''
    for i = 1, #NAMES do
      local value = rec[NAMES[i]]
      if value and value ~= '' then more = more .. '\n' .. NAMES[i] .. '=' .. value end
    end
  end
  return (rec.token or token_of(rec)) .. ' ' .. rec.en .. ' ' .. rec.la .. ' ' .. rec.ta .. ' ' .. rec.at
    .. more .. added
end

local function effect(rec)
  if not rec.effect then
    rec.effect = true
    effects[#effects + 1] = rec
  end
end

local function stream_of(rec)            -- the stream and the id that the record's entry names
  local en = rec.en
  local kind = sub(en, 1, 1)
  if kind == '-' or kind == 'g' then return nil end
  return LANE .. rec.la .. (SUFFIX[kind] or ':turn:' .. rec.tn), sub(en, 3)
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
