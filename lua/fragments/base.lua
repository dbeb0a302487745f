-- base: the clock, the key names of this shard, and the lists that `commit` writes.
--
-- Every script decides first, in memory, and then calls `commit` once (D3). Nothing here writes.
-- Needs: tag, clock. Numbers are integer milliseconds and are printed with %d: `..` on a large number
-- would print an exponent (R35).
local JOB, BODY, KEY = tag .. ':job:', tag .. ':body:', tag .. ':key:'
local DONE, WORKER, LANE = tag .. ':done:', tag .. ':worker:', tag .. ':lane:'
local SCHEDULE, DEADLINES, DLQ = tag .. ':schedule', tag .. ':deadlines', tag .. ':dlq'
local EVENTS, STATS, DEPTHS = tag .. ':events', tag .. ':stats', tag .. ':depths'
local FENCE, SWEEP, POLICIES = tag .. ':fence', tag .. ':sweep', tag .. ':policies'
local SUFFIX = { a = '', r = ':ready', q = ':quarantine', b = ':backlog' }
local CHUNK = 500                        -- `unpack` of 8,000 fails (R33)

local format, match, sub, find = string.format, string.match, string.sub, string.find
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
local extras = {}                        -- what a mirror needs beside the lines: name value, see events.md
local counters = {}                      -- stats field -> change
local acks = {}                          -- stream -> entry ids to XACK and XDEL
local dirty = {}                         -- records to save, in order
local effects = {}                       -- the few of them with more to write than the record
local gates                              -- what is known of gates, once a job has one
local turnstile                          -- who stands and who waits behind, once a job has a tenant
local turn_most = 16                     -- jobs of one tenant that may stand in a lane

local switch                             -- the mirror's fields of `policies`, read once a call

local function mirrored(...)             -- whether a mirror is on, so that the log carries all that it needs
  if switch == nil then                  -- read once, with what else of `policies` the first caller wants
    local found = redis.call('HMGET', POLICIES, 'mirror', 'restoring', 'mirror_bound', ...)
    switch = { on = found[1] and found[1] ~= 'off', marker = found[1], restoring = found[2], bound = found[3],
      found[4], found[5] }
  end
  return switch.on
end

local function log_at_bound()            -- nobody may enqueue; asked after `mirrored`
  return switch.on and switch.bound
    and tonumber(redis.call('HGET', STATS, 'log_bytes') or '0') >= tonumber(switch.bound)
end

local function tell(kind, value)         -- beside the line that was written last
  extras[#extras + 1] = kind .. format('%d', #lines)
  extras[#extras + 1] = value
end

local function bump(field, by)
  counters[field] = (counters[field] or 0) + by
end

local function add_event(script, actor)  -- one entry of the log for this call
  local event = { 'XADD', EVENTS, '*', 'n', format('%d', redis.call('HINCRBY', STATS, 'sequence', 1)),
    't', now_text, 's', script, 'w', actor }
  if #lines > 0 then
    event[#event + 1] = 'e'
    event[#event + 1] = table.concat(lines, '\n')
  end
  if #audit > 0 then
    event[#event + 1] = 'a'
    event[#event + 1] = table.concat(audit, '\n')
  end
  if mirrored() then
    for i = 1, #extras do event[#event + 1] = extras[i] end
    local size = 64                      -- as `size_of` in store/events.py
    for i = 13, #event, 2 do size = size + #event[i] end
    bump('log_bytes', size)
  end
  redis.call(unpack(event))
end

local function drop(stream, entry)
  local list = acks[stream]
  if list then list[#list + 1] = entry else acks[stream] = { entry } end
end
