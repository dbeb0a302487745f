-- recall: the last tick of each cron and its job, as the durable record has them, where Redis knows none as late (D19).
--
-- A cron that was only noted since the loss had that tick before.
-- Replies  number of crons that had forgotten theirs
local tag = KEYS[1]                      -- hash tag of the shard
-- rows: name tick job
local CRONS, FENCE = tag .. ':crons', tag .. ':fence'
local recalled = 0
redis.call('PERSIST', FENCE)             -- allowed under OOM, so the rest is too (R31)
for i = 1, #ARGV, 3 do
  local stands = redis.call('HGET', CRONS, ARGV[i]) or ''
  local last, job, rest = string.match(stands, '^(%d+) (%S+) ?(.*)$')
  if not last or job == '-' or tonumber(last) < tonumber(ARGV[i + 1]) then
    redis.call('HSET', CRONS, ARGV[i], ARGV[i + 1] .. ' ' .. ARGV[i + 2] .. ' ' .. (rest or ''))
    recalled = recalled + 1
  end
end
return recalled
