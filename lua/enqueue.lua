-- enqueue: new jobs -> queued, each with a typed disposition; the same job id sent again changes nothing.
--
-- Order: job id seen, idempotency key, delay, write. Begins with a growing write, so that under OOM the
-- whole call is refused (R31).
-- Replies, one per row:  ACCEPTED | SCHEDULED <due ms> | DUPLICATE <job id> <status> | CONFLICT <job id> <status>
local tag   = KEYS[1]                    -- hash tag of the shard
local clock = ARGV[1]                    -- ms, or '' for Redis TIME
-- rows: id task lane env extra
-- `extra` is '' or eight lines: key id, fingerprint, window ms, delay ms, deadline ms, tenant, max starts,
-- producer. An empty line means: none.
local script = 'enqueue'
-- include: fragments/base.lua
-- include: fragments/enqueue_step.lua
local replies = {}
for i = 2, #ARGV, 5 do
  local id = ARGV[i]
  local reply = decide(id, ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
  seen_ids[id] = seen_ids[id] or reply
  replies[#replies + 1] = reply
end
write_accepted()
if #lines > 0 then
  local sequence = redis.call('HINCRBY', STATS, 'sequence', 1)
  redis.call('XADD', EVENTS, '*', 'n', format('%d', sequence), 't', now_text, 's', script,
    'w', '-', 'e', table.concat(lines, '\n'))
  for field, by in pairs(counters) do redis.call('HINCRBY', STATS, field, format('%d', by)) end
end
return replies
