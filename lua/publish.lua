-- publish: what tasks and the router declare, so that producers without their code apply it (D17).
--
-- What was declared last stands in `meta` as `number declaration`, for each task and for the router. Each
-- call that changes anything takes the next number; what stands there already keeps its own.
-- Replies  the number of the newest change
local tag = KEYS[1]                      -- hash tag of the namespace: it holds for all shards
-- rows: field declaration
local META = tag .. ':meta'
redis.call('PERSIST', META)              -- allowed under OOM, so the rest is too (R31)
local newest = tonumber(redis.call('HGET', META, 'manifest') or '0')
local changed = {}
for i = 1, #ARGV, 2 do
  local field = ARGV[i]
  local stands = redis.call('HGET', META, field)
  if not stands or string.gsub(stands, '^%d+ ', '', 1) ~= ARGV[i + 1] then
    changed[#changed + 1] = { field, ARGV[i + 1] }
  end
end
if #changed > 0 then
  newest = newest + 1
  local number = string.format('%d', newest)
  redis.call('HSET', META, 'manifest', number)
  for i = 1, #changed do redis.call('HSET', META, changed[i][1], number .. ' ' .. changed[i][2]) end
end
return newest
