-- repair: looks up the place of open records, for what no stream, schedule or holder has any more (D3, D8).
--
-- A waiting job that is nowhere is made ready from its envelope, or scheduled again if its time has not come;
-- without an envelope it ends `entry_deleted`. What is left of a job that is over gets its end. A claim whose lease ran out and whose entry is gone is named, to be decided like a recovery.
-- Replies  { number put right, { candidate, ... } }
local tag          = KEYS[1]             -- hash tag of the shard
local clock        = ARGV[1]             -- ms, or '' for Redis TIME
local worker       = ARGV[2]             -- the keeper
local retention_ms = ARGV[3]             -- how long a finished record stays
-- rows: id
local script, actor = 'repair', worker
-- include: fragments/base.lua
-- include: fragments/record.lua
-- include: fragments/transition.lua
-- include: fragments/make_ready.lua
-- include: fragments/gates.lua
-- include: fragments/turnstile.lua
-- include: fragments/finish.lua
-- include: fragments/commit.lua
-- include: fragments/candidate.lua
local held_back = tonumber(redis.call('HGET', SWEEP, 'hold') or '0') > 0   -- D6: not after an outage
local found, mended = {}, 0

local function waits_at_gate(rec)
  return sub(rec.en, 1, 1) == 'g' and open_gates().look_after(rec)
end

local function entry_stands(rec)
  local stream, entry = stream_of(rec)
  return stream and #redis.call('XRANGE', stream, entry, entry) > 0
end

local function key_left_open(rec)        -- an error kept it from being freed or rewritten (R30)
  if (rec.mk or '') ~= '' and redis.call('EXISTS', tag .. ':merged_keys:' .. rec.id) == 1 then return true end
  if (rec.ky or '') == '' then return false end
  local holder, state = match(redis.call('GET', KEY .. rec.ky) or '', '^(%S+) %S+ (%S+)$')
  return holder == rec.id and state == 'open'
end

for i = 4, #ARGV do
  local rec = load(ARGV[i])
  if not rec then
    local body = BODY .. ARGV[i]
    if redis.call('PTTL', body) == -1 then redis.call('PEXPIRE', body, retention_ms) end   -- of a job long over
  elseif not rec.bad and HELD[rec.status] then
    if tonumber(rec.lease) <= now and not held_back and not entry_stands(rec) then
      found[#found + 1] = candidate(rec)
    end
  elseif not rec.bad and not WAITING[rec.status] then
    local left_open = key_left_open(rec)
    if left_open then release_key(rec, rec.status) end
    if left_open or redis.call('PTTL', JOB .. rec.id) == -1 or redis.call('PTTL', BODY .. rec.id) == -1 then
      touch(rec)                         -- over, but it would stay for ever
      effect(rec)
      rec.retire = true
    end
  elseif not rec.bad and rec.was == 'turned:' and entry_stands(rec) then
    open_turnstile().recount(rec.la, rec.tn)
    touch(rec)
  elseif not rec.bad and WAITING[rec.status] and not entry_stands(rec)
    and not waits_at_gate(rec)
    and not redis.call('ZSCORE', SCHEDULE, rec.id) then
    mended = mended + 1
    if sub(rec.en, 1, 1) == 'g' then open_gates().leave(rec) end
    local env, due = redis.call('HGET', BODY .. rec.id, 'env'), tonumber(rec.du or '')
    if env and due and due > now then    -- its time has not come: nobody is early for a lost schedule
      park(rec, env, due)
    elseif env then
      make_ready(rec, env)
      rec.unschedule = true
    else
      fail(rec, 'entry_deleted', 'unknown', 'entry_deleted', '', '', 'own')
    end
  end
end
commit()
return { mended, found }
