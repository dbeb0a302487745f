-- watch: a job's outcome if it is over, else a wake-up on `done:<id>` when it ends.
--
-- Replies  GONE | WAIT | { status, result, class and code, error text }
local tag    = KEYS[1]                   -- hash tag of the shard
local job_id = ARGV[1]                   -- which job
local wait   = ARGV[2]                   -- 1: register for the wake-up, 0: only look
local key, body = tag .. ':job:' .. job_id, tag .. ':body:' .. job_id
local rec = redis.call('HMGET', key, 'st', 're', 'ec')
if not rec[1] then return 'GONE' end
local status = string.match(rec[1], '^%S+')
if status ~= 'succeeded' and status ~= 'failed_terminal' then
  if wait == '1' then redis.call('HINCRBY', key, 'wa', 1) end
  return 'WAIT'
end
local long = redis.call('HMGET', body, 'result', 'error')
local failed = status == 'failed_terminal'
return { status, rec[2] or long[1] or '', failed and rec[3] or '', failed and long[2] or '' }
