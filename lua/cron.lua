-- cron: the job of one tick of a cron, once, whoever asks for it and however often.
--
-- Redis TIME says when a tick has come, no worker's clock. It counts if no later tick has counted and its key
-- `cron:<name>:<tick>` is new, which no end of a job removes. Then its job is enqueued, in the same step.
-- While the job of an earlier tick is open, `skip` counts the tick as skipped, and `replace` cancels that
-- job, or flags it if it is held. The key comes last: a call that is cut off is sent again under the same
-- job id, which is made from the tick. While Redis has lost data and is not restored, no tick counts, as in
-- `enqueue`: it may have run, and the job of an earlier one may be among those that come back (D19).
-- Replies  { OK | SKIPPED | ALREADY | EARLY | RESTORING, now in ms, last tick that counted or was noted, its job or '-', ms since when its schedule holds, that schedule, marker of the mirror }
local tag          = KEYS[1]             -- hash tag of the shard
local clock        = ARGV[1]             -- ms, or '' for Redis TIME
local worker       = ARGV[2]             -- who asks
local retention_ms = ARGV[3]             -- how long a finished record stays
local marker       = ARGV[4]             -- of the mirror, as the worker knows it; '' for none
local name         = ARGV[5]             -- of the cron, and of its task
local tick         = ARGV[6]             -- ms, or '' to note a cron that is new: it has missed nothing so far
local ttl_ms       = ARGV[7]             -- how long the tick's key stays
local overlap      = ARGV[8]             -- skip, queue or replace
local schedule     = ARGV[9]             -- zone and expression
local was          = ARGV[10]            -- '', or the schedule that this one takes the place of from now on
-- rows: id task lane env extra
-- one row, as in `enqueue`; none without a tick.
local script, actor = 'cron', worker
-- include: fragments/base.lua
-- include: fragments/record.lua
-- include: fragments/transition.lua
-- include: fragments/make_ready.lua
-- include: fragments/gates.lua
-- include: fragments/turnstile.lua
-- include: fragments/finish.lua
-- include: fragments/enqueue_step.lua
-- include: fragments/commit.lua
local CRONS, TICK = tag .. ':crons', tag .. ':cron:' .. name .. ':' .. tick
local last, last_job, since, said = match(redis.call('HGET', CRONS, name) or '', '^(%d+) (%S+) ?(%d*) ?(.*)$')

local function note()
  redis.call('HSET', CRONS, name, last .. ' ' .. last_job .. ' ' .. since .. ' ' .. said)
end

local function verdict()
  mirrored()
  if switch.restoring or marker ~= '' and switch.marker ~= marker and switch.marker ~= 'off' then
    return 'RESTORING'
  end
  if not tonumber(tick) then return 'ALREADY' end
  if tonumber(tick) > now then return 'EARLY' end
  -- A last tick beyond now is from before the clock was put back: then the keys alone decide.
  if last and tonumber(last) <= now and tonumber(tick) <= tonumber(last) then return 'ALREADY' end
  if redis.call('EXISTS', TICK) == 1 then return 'ALREADY' end
  return 'OK'
end

local function earlier_job()             -- the job of an earlier tick, if it is open
  if overlap == 'queue' or not last_job or last_job == '-' or last_job == ARGV[11] then return nil end
  local rec = load(last_job)
  if rec and not rec.bad and (WAITING[rec.status] or HELD[rec.status]) then return rec end
  return nil
end

local function replace(rec)
  if WAITING[rec.status] then
    fail(rec, 'superseded', 'persistent', 'superseded', '', '', 'own')
  elseif (rec.cx or '') == '' then
    put(rec, 'cx', 'superseded')
    audit[#audit + 1] = rec.id .. ' ' .. text_of[rec.epoch] .. ' cancel_requested'
  end
end

local reply = verdict()
if reply == 'OK' then
  local rec, job = earlier_job(), ARGV[11]
  if rec and overlap == 'skip' then
    reply, job = 'SKIPPED', rec.id
    bump('cron_skipped:' .. name, 1)
    audit[#audit + 1] = rec.id .. ' ' .. text_of[rec.epoch] .. ' cron_skipped'
  else
    decide(ARGV[11], ARGV[12], ARGV[13], ARGV[14], ARGV[15])
    if rec then replace(rec) end
    write_accepted()                     -- the growing write (R31)
  end
  commit()
  last, last_job, since, said = tick, job, '0', schedule
  note()
  redis.call('SET', TICK, job, 'PX', ttl_ms)
elseif reply ~= 'RESTORING' and not last then
  last, last_job, since, said = now_text, '-', '0', schedule
  note()
elseif reply ~= 'RESTORING' and was ~= '' and was == said then
  since, said = now_text, schedule
  note()
end
return { reply, now_text, last or '0', last_job or '-', since or '', said or '', switch.on and switch.marker or '' }
