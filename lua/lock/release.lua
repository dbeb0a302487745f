-- lock/release: a lock is free again, if it was still this holder's (R57).
--
-- Replies  OK | STALE
local tag    = KEYS[1]                   -- hash tag of the shard
local name   = ARGV[1]                   -- what is locked
local holder = ARGV[2]                   -- who says that it is his
local key = tag .. ':lock:' .. name
local by = string.match(redis.call('GET', key) or '', '^(%S+) %d+$')
if by ~= holder then return 'STALE' end
redis.call('DEL', key)
return 'OK'
