-- watch: a job's outcome if it is over, else a wake-up on `done:<id>` when it ends.
--
-- Replies  GONE | WAIT | { status, result, class and code, error text }
local tag    = KEYS[1]                   -- hash tag of the shard
local clock  = ARGV[1]                   -- ms, or '' for Redis TIME
local job_id = ARGV[2]                   -- which job
local wait   = ARGV[3]                   -- 1: register for the wake-up, 0: only look
-- include: fragments/base.lua
-- include: fragments/record.lua
local rec = load(job_id)
if not rec then return 'GONE' end
if rec.bad or HELD[rec.status] or WAITING[rec.status] then
  if wait == '1' and not rec.bad then
    redis.call('PERSIST', JOB .. job_id) -- open, so it has no TTL; allowed under OOM, so the rest is too (R31)
    put(rec, 'wa', text_of[tonumber(rec.wa or '0') + 1])
    redis.call('SET', JOB .. job_id, line_of(rec))
  end
  return 'WAIT'
end
local long = redis.call('HMGET', BODY .. job_id, 'result', 'error')
local failed = rec.status == 'failed_terminal'
return { rec.status, rec.re or long[1] or '', failed and rec.ec or '', failed and long[2] or '' }
