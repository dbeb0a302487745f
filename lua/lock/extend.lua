-- lock/extend: a lock lives on, if it is still this holder's (R56).
--
-- Replies  OK | STALE
local tag    = KEYS[1]                   -- hash tag of the shard
local name   = ARGV[1]                   -- what is locked
local holder = ARGV[2]                   -- who says that it is his
local ttl_ms = ARGV[3]                   -- how long it lives from now
local key = tag .. ':lock:' .. name
local by = string.match(redis.call('GET', key) or '', '^(%S+) %d+$')
if by ~= holder then return 'STALE' end
redis.call('PEXPIRE', key, ttl_ms)
return 'OK'
