-- declare: the limits that an app's tasks declare, and its lanes from the urgent to the patient.
--
-- What was declared last holds for all jobs, queued ones too, unless an operator has set another.
-- Replies  how many limits changed
local tag   = KEYS[1]                    -- hash tag of the shard
local clock = ARGV[1]                    -- ms, or '' for Redis TIME
local lanes = ARGV[2]                    -- names, the most urgent first
-- rows: limit figures
-- include: fragments/base.lua
local POLICIES = tag .. ':policies'
local changed = 0
redis.call('PERSIST', POLICIES)          -- allowed under OOM, so the rest is too (R31)
redis.call('HSET', POLICIES, 'lanes', lanes)
for i = 3, #ARGV, 2 do
  local field, figures = 'declared:' .. ARGV[i], ARGV[i + 1]
  local before = redis.call('HGET', POLICIES, field)
  if before ~= figures then
    redis.call('HSET', POLICIES, field, figures)
    changed = changed + 1
    if before then                       -- who waits may pass by now
      redis.call('ZADD', tag .. ':timers', now_text, 'limits:' .. match(ARGV[i], '^%l+'))
    end
  end
end
return changed
