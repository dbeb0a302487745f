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
local function class_and_code(fields)
  local named = {}
  for i = 1, #fields, 2 do named[fields[i]] = fields[i + 1] end
  return (named.class or 'unknown') .. ' ' .. (named.code or 'unknown')
end

local replies, seen = {}, {}
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
  elseif seen[id] or rec and (rec.dq or '') ~= '' then
    reply = 'ALREADY'
  else
    seen[id] = true
    local letter = redis.call('XADD', DLQ, '*', unpack(fields))
    audit[#audit + 1] = id .. ' ' .. epoch .. ' imported'
    if rec then
      put(rec, 'dq', letter)
      put(rec, 'ec', class_and_code(fields))
    end
  end
  replies[#replies + 1] = reply
end
if #audit > 0 then commit() end
return replies
