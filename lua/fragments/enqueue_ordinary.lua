-- enqueue_ordinary: a call of jobs that say nothing but their task and lane, each new, none refused.
--
-- The keys, lines and counts are those of `enqueue`, without a table for each job (docs/decisions/0028). Answers nil,
-- before anything is written, where a job is not like that; the whole call then goes the long way.
local function names_of_ordinary()       -- of the records, if all may be such jobs
  local args, names, seen, n = ARGV, {}, {}, 0
  for i = 3, #args, 5 do
    local id = args[i]
    if args[i + 4] ~= '' or seen[id] then return nil end
    seen[id] = true
    n = n + 1
    names[n] = JOB .. id
  end
  return n > 0 and n <= CHUNK and names
end

local function all_are_taken(names)      -- no bound, no loss of Redis, and nobody there
  if (switch[1] or '') ~= '' or (switch[2] or '') ~= '' then return false end
  if switch.restoring or marker ~= '' and switch.marker ~= marker then return false end
  if log_at_bound() then return false end
  local there = redis.call('MGET', unpack(names))
  for i = 1, #names do
    if there[i] then return false end
  end
  return true
end

local function enqueue_ordinary()
  local names = names_of_ordinary()
  if not names then return nil end
  local on = mirrored('declared:admission', 'throttles')
  if not all_are_taken(names) then return nil end
  local args, records, replies, at, same = ARGV, {}, {}, 3, {}
  for i = 1, #names do
    local id, task, lane, env, more = args[at], args[at + 1], args[at + 2], args[at + 3], ' +'
    if task ~= same.task or lane ~= same.lane then
      more = ' + ' .. task .. ' ' .. lane
      same = { task = task, lane = lane, stream = LANE .. lane, queued = 'queued:' .. lane,
        enqueued = 'enqueued:' .. lane .. ':' .. task, rest = ' ' .. lane .. ' ' .. task .. ' ' .. now_text }
    end
    local entry = redis.call('XADD', same.stream, '*', 'id', id, 'env', env)
    records[2 * i - 1] = names[i]
    records[2 * i] = 'queued a:' .. entry .. same.rest
    counters[same.queued] = (counters[same.queued] or 0) + 1
    counters[same.enqueued] = (counters[same.enqueued] or 0) + 1
    lines[i] = id .. more
    if on then
      extras[2 * i - 1] = 'p' .. format('%d', i)
      extras[2 * i] = env
    end
    replies[i] = 'ACCEPTED'
    at = at + 5
  end
  for i = 1, #records, CHUNK do
    redis.call('MSET', unpack(records, i, math.min(i + CHUNK - 1, #records)))
  end
  return finish(replies)
end
