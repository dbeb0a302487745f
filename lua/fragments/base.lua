-- base: the clock, the key names of this shard, and the lists that `commit` writes.
--
-- Every script decides first, in memory, and then calls `commit` once (D3). Nothing here writes.
-- Needs: tag, clock. Numbers are integer milliseconds and are printed with %d: `..` on a large number
-- would print an exponent (R35).
local JOB, BODY, KEY = tag .. ':job:', tag .. ':body:', tag .. ':key:'
local DONE, WORKER, LANE = tag .. ':done:', tag .. ':worker:', tag .. ':lane:'
local SCHEDULE, DEADLINES, DLQ = tag .. ':schedule', tag .. ':deadlines', tag .. ':dlq'
local EVENTS, STATS = tag .. ':events', tag .. ':stats'
local FENCE, SWEEP = tag .. ':fence', tag .. ':sweep'
local SUFFIX = { a = '', r = ':ready', q = ':quarantine' }
local CHUNK = 500                        -- `unpack` of 8,000 fails (R33)

local format, match, sub = string.format, string.match, string.sub
local now                                -- TIME is read once per script (R36)
if clock == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
else
  now = tonumber(clock)
end

local now_text = format('%d', now)

local lines = {}                         -- transition log, one line per edge
local audit = {}                         -- what operators asked for and no edge tells: id epoch what
local counters = {}                      -- stats field -> change
local acks = {}                          -- stream -> entry ids to XACK and XDEL
local dirty = {}                         -- records to save, in order
local effects = {}                       -- the few of them with more to write than the record

local function bump(field, by)
  counters[field] = (counters[field] or 0) + by
end

local function drop(stream, entry)
  local list = acks[stream]
  if list then list[#list + 1] = entry else acks[stream] = { entry } end
end
