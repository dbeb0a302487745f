-- forget: removes a dead worker's consumers where nothing is pending (R6): check and removal in one step.
--
-- Replies  number of streams where it is no consumer any more, or ALIVE while the worker's key exists
local tag    = KEYS[1]                   -- hash tag of the shard
local worker = ARGV[1]                   -- worker id: the consumer name
local leave  = ARGV[2]                   -- 1: the worker itself is leaving, its key goes first
-- rows: lane
local key = tag .. ':worker:' .. worker
if leave == '1' then redis.call('DEL', key) end
if redis.call('EXISTS', key) == 1 then return 'ALIVE' end
redis.call('HDEL', tag .. ':workers', worker)
local removed = 0
for i = 3, #ARGV do
  for _, suffix in ipairs({ '', ':ready', ':quarantine' }) do
    local stream = tag .. ':lane:' .. ARGV[i] .. suffix
    local pending = redis.pcall('XPENDING', stream, 'workers', '-', '+', 1, worker)
    if not pending.err and #pending == 0 then
      redis.call('XGROUP', 'DELCONSUMER', stream, 'workers', worker)
      removed = removed + 1
    end
  end
end
return removed
