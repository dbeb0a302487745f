-- session: a new session number for a worker's connection: max(own, stored) + 1 (D5).
--
-- Claims sent under an older session find nothing from now on. Rows say what the worker is.
-- Replies  the session number
local tag         = KEYS[1]              -- hash tag of the shard
local worker      = ARGV[1]              -- worker id: the consumer name
local own         = ARGV[2]              -- the highest number the worker knows
local liveness_ms = ARGV[3]              -- life of the worker key without a heartbeat
-- rows: field value
local key = tag .. ':worker:' .. worker
redis.call('PERSIST', key)               -- allowed under OOM, so the rest is too (R31)
local stored = tonumber(redis.call('HGET', key, 'session') or '0')
local session = string.format('%d', math.max(tonumber(own), stored) + 1)
redis.call('HSET', key, 'session', session, unpack(ARGV, 4))
redis.call('PEXPIRE', key, liveness_ms)
redis.call('HSET', tag .. ':workers', worker, session) -- where to look for workers; whether one lives, its key says
return session
