-- pressure: how much waits in each lane, as a keeper found it; producers' rules may ask for it.
--
-- Writes only what changed, so that it costs nothing to say it again.
-- Replies  how many lanes changed
local tag = KEYS[1]                      -- hash tag of the shard
-- rows: lane level
-- `level` is ok, high or over.
local POLICIES = tag .. ':policies'
redis.call('PERSIST', POLICIES)          -- allowed under OOM, so the rest is too (R31)
local changed = 0
for i = 1, #ARGV, 2 do
  local field, level = 'pressure:' .. ARGV[i], ARGV[i + 1]
  if (redis.call('HGET', POLICIES, field) or 'ok') ~= level then
    redis.call('HSET', POLICIES, field, level)
    changed = changed + 1
  end
end
return changed
