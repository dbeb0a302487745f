-- hold: keys of jobs that succeeded, again for what is left of their windows, where nobody has them (D19).
--
-- Replies  number of keys that were free
local tag = KEYS[1]                      -- hash tag of the shard
-- rows: key value ttl
-- `key` is the key's id, `value` what `finish` wrote there, `ttl` in ms.
local KEY = tag .. ':key:'
local held = 0
for i = 1, #ARGV, 3 do
  if redis.call('SET', KEY .. ARGV[i], ARGV[i + 1], 'NX', 'PX', ARGV[i + 2]) then held = held + 1 end
end
return held
