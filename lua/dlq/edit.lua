-- dlq/edit: an operator's word on what a dead letter will be replayed with. The job stays dead.
--
-- A stream's entry cannot be changed, so the letter gets a new place at the end; what was changed stands in the
-- log.
-- Replies, one per row:  the letter's new id | ALREADY
local tag          = KEYS[1]             -- hash tag of the shard
local clock        = ARGV[1]             -- ms, or '' for Redis TIME
local actor        = ARGV[2]             -- who asks, for the log
local retention_ms = ARGV[3]             -- how long a finished record stays
-- rows: letter id epoch env detail
-- `detail` is one word for the log: what was changed.
local script = 'dlq/edit'
-- include: fragments/base.lua
-- include: fragments/record.lua
-- include: fragments/turnstile.lua
-- include: fragments/commit.lua
local function fields_of(letter)
  local found = redis.call('XRANGE', DLQ, letter, letter)[1]
  if not found then return {}, {} end
  local named = {}
  for i = 1, #found[2], 2 do named[found[2][i]] = found[2][i + 1] end
  return named, found[2]
end

local replies, old = {}, {}
redis.call('PERSIST', FENCE)             -- allowed under OOM, so the rest is too (R31)
for i = 4, #ARGV, 5 do
  local letter, id, epoch, env, detail = unpack(ARGV, i, i + 4)
  local named, flat = fields_of(letter)
  local reply = 'ALREADY'
  if named.id == id and named.epoch == epoch and not old[letter] then
    for j = 1, #flat, 2 do
      if flat[j] == 'env' then flat[j + 1] = env end
    end
    reply = redis.call('XADD', DLQ, '*', unpack(flat))
    old[letter] = true
    old[#old + 1] = letter
    audit[#audit + 1] = id .. ' ' .. epoch .. ' edited ' .. detail
    local rec = load(id)
    if rec and not rec.bad and rec.status == 'failed_terminal' and rec.epoch == tonumber(epoch) then
      put(rec, 'dq', reply)
    end
  end
  replies[#replies + 1] = reply
end
if #old > 0 then
  commit()
  redis.call('XDEL', DLQ, unpack(old))
end
return replies
