-- discard: an operator's word that a dead letter needs nobody any more: it leaves the DLQ.
--
-- The job stays failed_terminal, with error code `discarded` while its record lives; the event log keeps
-- the decision.
-- Replies, one per row:  OK | ALREADY
local tag          = KEYS[1]             -- hash tag of the shard
local clock        = ARGV[1]             -- ms, or '' for Redis TIME
local actor        = ARGV[2]             -- who asks, for the log
local retention_ms = ARGV[3]             -- how long a finished record stays
-- rows: letter id epoch
local script = 'discard'
-- include: fragments/base.lua
-- include: fragments/record.lua
-- include: fragments/turnstile.lua
-- include: fragments/commit.lua
local replies, letters, seen = {}, {}, {}
for i = 4, #ARGV, 3 do
  local letter, id, epoch = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local found = not seen[letter] and redis.call('XRANGE', DLQ, letter, letter)[1]
  seen[letter] = true
  local reply = 'ALREADY'
  if found then
    local fields = {}
    for j = 1, #found[2], 2 do fields[found[2][j]] = found[2][j + 1] end
    if fields.id == id and fields.epoch == epoch then
      reply = 'OK'
      letters[#letters + 1] = letter
      bump('discarded:' .. (fields.lane or '') .. ':' .. (fields.task or ''), 1)
      audit[#audit + 1] = id .. ' ' .. epoch .. ' discarded'
      local rec = load(id)
      if rec and not rec.bad and rec.status == 'failed_terminal' and rec.epoch == tonumber(epoch) then
        put(rec, 'ec', 'persistent discarded')
        put(rec, 'dq', '')
      end
    end
  end
  replies[#replies + 1] = reply
end
if #letters > 0 then
  commit()
  redis.call('XDEL', DLQ, unpack(letters))
end
return replies
