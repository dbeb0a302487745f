-- publish: what tasks and the router declare, so that producers without their code apply it (D17).
--
-- What was declared last stands in `meta` as `number declaration`, for each task and for the router. Each
-- call that changes anything takes the next number; what stands there already keeps its own.
-- Replies, one per row:  the number of the change that wrote what stands there now
local tag = KEYS[1]                      -- hash tag of the namespace: it holds for all shards
-- rows: field declaration
local META = tag .. ':meta'
redis.call('PERSIST', META)              -- allowed under OOM, so the rest is too (R31)
local newest = tonumber(redis.call('HGET', META, 'manifest') or '0')
local changed, numbers = {}, {}
for i = 1, #ARGV, 2 do
  local field = ARGV[i]
  local number, stands = string.match(redis.call('HGET', META, field) or '', '^(%d+) (.*)$')
  if stands ~= ARGV[i + 1] then
    changed[#changed + 1] = { field, ARGV[i + 1] }
    number = newest + 1
  end
  numbers[#numbers + 1] = tonumber(number)
end
if #changed > 0 then
  local number = string.format('%d', newest + 1)
  redis.call('HSET', META, 'manifest', number)
  for i = 1, #changed do redis.call('HSET', META, changed[i][1], number .. ' ' .. changed[i][2]) end
end
return numbers
