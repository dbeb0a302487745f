-- fold: adds counters of what nobody registered to one of all such; their sums stay as they are.
--
-- Replies  how many counters are gone
local tag = KEYS[1]                      -- hash tag of the shard
-- rows: hash field target
-- `hash` is stats or depths.
redis.call('PERSIST', tag .. ':stats')   -- allowed under OOM, so the rest is too (R31)
local folded = 0
for i = 1, #ARGV, 3 do
  local key, field = tag .. ':' .. ARGV[i], ARGV[i + 1]
  local count = redis.call('HGET', key, field)
  if count then
    redis.call('HINCRBY', key, ARGV[i + 2], count)
    redis.call('HDEL', key, field)
    folded = folded + 1
  end
end
return folded
