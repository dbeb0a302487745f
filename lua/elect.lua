-- elect: a hint who does a keeper's work; losing it changes nothing but work done twice.
--
-- Replies  1 if this worker holds the role now, else 0
local tag    = KEYS[1]                   -- hash tag of the shard
local role   = ARGV[1]                   -- keeper
local worker = ARGV[2]                   -- who asks
local ttl_ms = ARGV[3]                   -- how long the role lasts without asking again (R4: never without)
local key = tag .. ':elect:' .. role
redis.call('PERSIST', tag .. ':fence')   -- allowed under OOM, so the rest is too (R31)
if redis.call('GET', key) == worker then
  redis.call('PEXPIRE', key, ttl_ms)
  return 1
end
return redis.call('SET', key, worker, 'NX', 'PX', ttl_ms) and 1 or 0
