-- dlq/import: dead letters that were exported come back, of jobs that have none and are not alive.
--
-- A job that is open, has succeeded, or has a letter is left alone, and so is one whose record knows a later epoch.
-- Replies, one per row:  OK | ALREADY (it has a letter) | ALIVE (its job is not dead)
local tag          = KEYS[1]             -- hash tag of the shard
local clock        = ARGV[1]             -- ms, or '' for Redis TIME
local actor        = ARGV[2]             -- who asks, for the log
local retention_ms = ARGV[3]             -- how long a finished record stays
-- rows: id epoch count fields
-- `fields` are `count` words of the letter, each name before its value.
local script = 'dlq/import'
-- include: fragments/base.lua
-- include: fragments/record.lua
-- include: fragments/turnstile.lua
-- include: fragments/commit.lua
-- include: fragments/revive.lua
local function named(fields)
  local dead = {}
  for i = 1, #fields, 2 do dead[fields[i]] = fields[i + 1] end
  return dead
end

local replies = {}
local i = 4
redis.call('PERSIST', FENCE)             -- allowed under OOM, so the rest is too (R31)
while i <= #ARGV do
  local id, epoch, count = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local fields = { unpack(ARGV, i + 3, i + 2 + count) }
  i = i + 3 + count
  local rec = load(id)
  local reply = 'OK'
  if rec and (rec.bad or rec.status ~= 'failed_terminal' or rec.epoch ~= tonumber(epoch)) then
    reply = 'ALIVE'
  elseif rec and (rec.dq or '') ~= '' then
    reply = 'ALREADY'
  else
    local dead = named(fields)
    rec = rec or revive(id, dead)        -- so that the same call sent twice finds it
    put(rec, 'dq', redis.call('XADD', DLQ, '*', unpack(fields)))
    put(rec, 'ec', (dead.class or 'unknown') .. ' ' .. (dead.code or 'unknown'))
    if (rec.fi or '') == '' and (rec.sd or '') == '' then put(rec, 'fi', dead.dead_at or now_text) end
    bump('imported:' .. (dead.lane or '') .. ':' .. (dead.task or ''), 1)
    audit[#audit + 1] = id .. ' ' .. epoch .. ' imported'
  end
  replies[#replies + 1] = reply
end
if #audit > 0 then commit() end
return replies
