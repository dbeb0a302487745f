-- elect: a hint who does a keeper's work; losing it changes nothing but work done twice.
--
-- A role that would last for longer than any is given for is free: Redis's clock was put back, or somebody took its
-- end away. Else nobody would do its holder's work until then if that is dead.
-- Replies  1 if this worker holds the role now, else 0
local tag    = KEYS[1]                   -- hash tag of the shard
local role   = ARGV[1]                   -- keeper
local worker = ARGV[2]                   -- who asks
local ttl_ms = ARGV[3]                   -- how long the role lasts without asking again (R4: never without)
local key = tag .. ':elect:' .. role
local LONGEST_MS = 20000
redis.call('PERSIST', tag .. ':fence')   -- allowed under OOM, so the rest is too (R31)
if redis.call('GET', key) == worker then
  redis.call('PEXPIRE', key, ttl_ms)
  return 1
end
local left = redis.call('PTTL', key)     -- -1: for ever; -2: nobody has it
if left == -1 or left > math.max(LONGEST_MS, tonumber(ttl_ms)) then redis.call('DEL', key) end
return redis.call('SET', key, worker, 'NX', 'PX', ttl_ms) and 1 or 0
