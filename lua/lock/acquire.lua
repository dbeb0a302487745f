-- lock/acquire: a lock for a handler, with a fence (R52-R54).
--
-- The same holder gets the same token again, for as long again, so that a call may be sent twice. The fence is
-- the shard's, so a token is larger than every one that was given before, of whichever lock.
-- Replies  { OK, token } | { BUSY, ms left }
local tag    = KEYS[1]                   -- hash tag of the shard
local clock  = ARGV[1]                   -- ms, or '' for Redis TIME
local name   = ARGV[2]                   -- what is locked
local holder = ARGV[3]                   -- job id, fence of its claim, and which of its locks, joined by colons
local ttl_ms = ARGV[4]                   -- how long it lives without being extended
local floor  = ARGV[5]                   -- a token is larger than that: what a database has seen, else 0
-- include: fragments/base.lua
local key = tag .. ':lock:' .. name
local by, token = match(redis.call('GET', key) or '', '^(%S+) (%d+)$')
redis.call('PERSIST', FENCE)             -- allowed under OOM, so the rest is too (R31)
if by == holder then
  redis.call('PEXPIRE', key, ttl_ms)
  return { 'OK', token }
end
if by then return { 'BUSY', format('%d', math.max(1, redis.call('PTTL', key))) } end
local last = tonumber(redis.call('GET', FENCE) or '0')
token = format('%d', math.max(last + 1, now * 1024, tonumber(floor) + 1))
redis.call('SET', FENCE, token)
redis.call('SET', key, holder .. ' ' .. token, 'PX', ttl_ms)
return { 'OK', token }
