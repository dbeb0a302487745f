-- drain: jobs of the backlog -> arrivals of the lane that each is meant for, by a token bucket, while that has room.
--
-- The earliest first, over all lanes that have room: a lane that is full, or paused, holds up no other. What moves
-- has lost its token even if a moment later somebody cancels it. Adds before it removes (R31).
-- Replies  { drained, ms until the next is to be drained or '' }
local tag          = KEYS[1]             -- hash tag of the shard
local clock        = ARGV[1]             -- ms, or '' for Redis TIME
local worker       = ARGV[2]             -- the keeper
local retention_ms = ARGV[3]             -- how long a finished record stays
local limit        = ARGV[4]             -- jobs at most (R32)
-- rows: lane high_water
-- A lane is filled up to its high water: jobs that wait, at gates and behind turnstiles too.
local script, actor = 'drain', worker
-- include: fragments/base.lua
-- include: fragments/record.lua
-- include: fragments/transition.lua
-- include: fragments/move.lua
-- include: fragments/make_ready.lua
-- include: fragments/gates.lua
-- include: fragments/turnstile.lua
-- include: fragments/finish.lua
-- include: fragments/commit.lua
local MOST_BYTES = 524288                -- of envelopes in one call (R46)
local STEP_MS = 100                      -- between two calls at most while there is something to do
local figures                            -- of the bucket; nil while the drain is off

local function is_paused(scope)          -- one that opens again does not count: the bucket is a ramp of its own
  local pause = open_gates().paused(scope)
  return pause and pause.state == 'paused' and (pause.till == 0 or pause.till > now)
end

local function read_figures()            -- `on` or `off` and figures as an operator has set them, else what is declared
  local set, declared = unpack(redis.call('HMGET', POLICIES, 'drain', 'declared:drain'))
  local state, other = match(set or 'on -', '^(%S+) (%S+)')
  if state == 'on' and not is_paused('lane:backlog') then figures = other ~= '-' and other or declared end
end

local function source_of(lane, high)     -- a lane's backlog and how many more the lane takes; nil if it is empty
  local source = { lane = lane, stream = LANE .. lane .. SUFFIX.b, from = '-', list = {}, at = 1 }
  if redis.call('XLEN', source.stream) == 0 then return nil end
  local found = redis.call('HMGET', STATS, 'queued:' .. lane, 'parked:' .. lane, 'turned:' .. lane)
  source.room = tonumber(high) - (found[1] or 0) - (found[2] or 0) - (found[3] or 0)
  if is_paused('lane:' .. lane) then source.room = 0 end
  return source
end

local function head(source, most)        -- its first entry that was not looked at, or nil
  if not source.list[source.at] and not source.done then
    source.list = redis.call('XRANGE', source.stream, source.from, '+', 'COUNT', most)
    source.at, source.done = 1, #source.list < most
    if #source.list > 0 then source.from = '(' .. source.list[#source.list][1] end
  end
  return source.list[source.at]
end

local function is_before(one, other)     -- by their ids, ms and number
  local ms, number = match(one, '^(%d+)-(%d+)$')
  local other_ms, other_number = match(other, '^(%d+)-(%d+)$')
  if ms ~= other_ms then return tonumber(ms) < tonumber(other_ms) end
  return tonumber(number) < tonumber(other_number)
end

local function next_of(sources, most)    -- the source whose head came first, of those with room
  local first, entry
  for i = 1, #sources do
    local source = sources[i]
    local one = source.room > 0 and head(source, most)
    if one and (not first or is_before(one[1], entry[1])) then first, entry = source, one end
  end
  return first, entry
end

local function let_in(source, entry, id, env)  -- whether it was one that counts
  local rec = load(id)
  if rec and rec.bad then
    bury_unreadable(rec, source.lane, env)
    bump('backlog:' .. source.lane, -1)
  end
  if not rec or rec.bad or not WAITING[rec.status] or rec.la ~= source.lane or rec.en ~= 'b:' .. entry then
    drop(source.stream, entry)           -- no open record honours it (D2)
    return false
  end
  bump('drained:' .. rec.la .. ':' .. rec.ta, 1)
  ack_entry(rec)
  put(rec, 'bl', '')
  move(rec, rec.status, 'drained', '')
  effect(rec)
  rec.ready, rec.kind = env, 'a'
  return true
end

read_figures()
local sources = {}
if figures then
  for i = 5, #ARGV, 2 do sources[#sources + 1] = source_of(ARGV[i], ARGV[i + 1]) end
end
if #sources == 0 then return { 0, '' } end
local word = { name = 'drain', in_force = figures }
local bucket = gates.at('drain')
local tokens = math.min(gates.tokens_left(bucket, word), tonumber(limit))
local drained, bytes, seen = 0, 0, 0
while drained < tokens and bytes < MOST_BYTES and seen < 2 * limit do
  local source, entry = next_of(sources, math.max(1, tokens))
  if not source then break end
  source.at, seen = source.at + 1, seen + 1
  if let_in(source, entry[1], entry[2][2], entry[2][4]) then
    gates.take_token(bucket, word)
    source.room, drained, bytes = source.room - 1, drained + 1, bytes + #entry[2][4]
  end
end
if seen > 0 then commit() end
-- A few tokens at a time, but before the bucket is full: what would be added then is lost.
local full_in = word.burst * word.period / word.tokens
return { drained, format('%d', math.max(1, math.min(STEP_MS, full_in / 2))) }
