-- enqueue_step: what becomes of each new job, decided in memory, and the writes of those that are accepted.
--
-- A row is id, task, lane, env, extra, see enqueue.lua. `write_accepted` begins with a growing write, so that
-- under OOM the whole call is refused (R31); the events and counters are the caller's to write.
-- `door`, if there is one, has a say in each new job: it may refuse it, or send it to the backlog. `windows`, if
-- there are any, may merge it into another.
local EXTRA = '^([^\n]*)\n([^\n]*)\n(%d*)\n(%d*)\n(%d*)\n([^\n]*)\n(%d*)\n([^\n]*)\n([^\n]*)\n([^\n]*)$'
local door, windows
local seen_ids, seen_keys, accepted = {}, {}, {}
local log_is_full = false                -- the mirror's log has reached its bound
local parked                             -- job ids that wait at a gate, once there is one

local function holder_of(key)            -- job id, fingerprint, status of who holds the key, or nil
  if seen_keys[key] then return unpack(seen_keys[key]) end
  local value = redis.call('GET', KEY .. key)
  local id, fingerprint, state = match(value or '', '^(%S+) (%S+) (%S+)$')
  if not id then return nil end
  if state == 'open' then                -- R43: a missing target frees the key only while it says open
    local record = redis.call('GET', JOB .. id)
    if not record then return nil end
    state = match(record, '^%S+')
    if state == 'failed_terminal' then return nil end      -- an error kept the key from being freed (R30)
  end
  return id, fingerprint, state
end

local function reject(row, retry_ms, why) -- nothing of it stays but a count
  bump('rejected:' .. row.lane .. ':' .. why, 1)
  return 'REJECTED ' .. format('%d', retry_ms) .. ' ' .. why
end

local function find_records(first, size) -- what `decide` takes with each row: one read for up to 500 of them
  local keys = {}
  for i = first, #ARGV, size do keys[#keys + 1] = JOB .. ARGV[i] end
  return #keys > 1 and #keys <= CHUNK and redis.call('MGET', unpack(keys)) or {}
end

local function decide(id, task, lane, env, extra, known)
  if seen_ids[id] then return seen_ids[id] end
  if known == nil then known = redis.call('GET', JOB .. id) end
  if known then return match(known, '\ndi=([^\n]*)') or 'ACCEPTED' end
  local row = { id = id, task = task, lane = lane, env = env, at = now_text, plain = extra == '' }
  if extra ~= '' then
    local delay, window
    row.key, row.fingerprint, window, delay, row.deadline, row.tenant, row.max_starts, row.producer,
      row.gates, row.route = match(extra, EXTRA)
    if not row.key then error('enqueue row cannot be read: ' .. id) end
    if row.fingerprint == '' then row.fingerprint = '-' end
    if row.route ~= '' then
      local backlog, window
      row.route, backlog, window = match(row.route, '^(%S*) ?(%S*) ?(.*)$')
      if backlog ~= '' then row.backlog = backlog end
      local into = windows and window ~= '' and windows.read(row, window)  -- where the same request went before
      if into then return 'COALESCED ' .. into end
    end
    if row.key ~= '' then
      local holder, fingerprint, status = holder_of(row.key)
      if holder == id then return 'ACCEPTED' end
      if holder then
        local word = fingerprint == row.fingerprint and 'DUPLICATE' or 'CONFLICT'
        bump(string.lower(word) .. ':' .. lane, 1)
        return word .. ' ' .. holder .. ' ' .. status
      end
      row.window = window
    end
    if row.deadline ~= '' then row.deadline = format('%d', now + tonumber(row.deadline)) end
    if delay ~= '' and tonumber(delay) > 0 then row.due = format('%d', now + tonumber(delay)) end
  end
  if log_is_full then return reject(row, 1000, 'log_full') end
  if row.window_of then
    local into = windows.merge(row)
    if into then return 'COALESCED ' .. into end
  end
  if door then
    local refused = door(row)
    if refused then return refused end
  end
  if row.window_of then windows.open(row) end
  accepted[#accepted + 1] = row
  if row.plain then return 'ACCEPTED' end
  if row.key ~= '' then seen_keys[row.key] = { id, row.fingerprint, 'queued' } end
  return row.due and 'SCHEDULED ' .. row.due or row.backlog and 'DEFERRED' or 'ACCEPTED'
end

local function queue_up(row)             -- where it stands: gates and turnstile may have a say
  if row.backlog then return end         -- when it is drained
  if (row.gates or '') ~= '' and string.find(row.gates, ' entity:', 1, true) then open_gates().arrive(row) end
  if not row.parked and (row.tenant or '') ~= '' then    -- D15
    row.behind = not open_turnstile().admit(turnstile.of(row.lane, row.tenant), turn_most)
  end
end

local function settle_down(place, row)   -- it counts there; `enqueued` counts it by task, as queued
  bump(place .. row.lane, 1)
  if place ~= 'queued:' then
    local task = row.lane .. ':' .. row.task
    redis.call('HINCRBY', DEPTHS, 'queued:' .. task, -1)
    redis.call('HINCRBY', DEPTHS, place .. task, 1)
  end
end

local function write_place(row)          -- the growing write: the stream entry, or the parked envelope
  local kind, place, stream = 'a:', 'queued:', LANE .. row.lane
  if not row.plain then
    if row.due or row.parked then
      redis.call('HSET', BODY .. row.id, 'env', row.env)
      if row.due then redis.call('ZADD', SCHEDULE, row.due, row.id) end
      settle_down(row.due and 'scheduled:' or 'parked:', row)
      return row.due and '-' or 'g:' .. row.parked
    end
    if row.backlog then
      kind, place, stream = 'b:', 'backlog:', stream .. SUFFIX.b
      bump('deferred:' .. row.lane .. ':' .. row.backlog, 1)
    elseif row.behind then
      kind, place, stream = 't:', 'turned:', stream .. ':turn:' .. row.tenant
    end
  end
  local entry = redis.call('XADD', stream, '*', 'id', row.id, 'env', row.env)
  settle_down(place, row)
  return kind .. entry
end

local function lines_of(row)             -- what its record says beyond the first line
  local more = ''
  if row.key ~= '' then more = '\nky=' .. row.key .. '\nkf=' .. row.fingerprint .. '\nkw=' .. row.window end
  if row.deadline ~= '' then more = more .. '\ndl=' .. row.deadline end
  if row.tenant ~= '' then more = more .. '\ntn=' .. row.tenant end
  if row.max_starts ~= '' then more = more .. '\nms=' .. row.max_starts end
  if row.gates ~= '' then more = more .. '\nga=' .. row.gates end
  if row.place then more = more .. format('\npl=%d', row.place) end
  if row.granted then more = more .. '\nhg= ' .. row.granted .. ' ' end
  if row.backlog then more = more .. '\nbl=' .. row.backlog end
  if row.merged then more = more .. format('\nmk=%d', row.merged) end
  if row.due then more = more .. '\ndu=' .. row.due end
  if row.parked then
    more = more .. '\ndi=PARKED'
  elseif row.due or row.was_due then
    more = more .. '\ndi=SCHEDULED ' .. (row.due or row.was_due)
  elseif row.backlog then
    more = more .. '\ndi=DEFERRED'
  end
  return more
end

local function write_record(row, entry, records) -- adds its name and line, to be written together
  local more = row.plain and '' or lines_of(row)
  -- The records last: until one is there, its key counts as free and its deadline names nobody.
  if (row.deadline or '') ~= '' then redis.call('ZADD', DEADLINES, row.deadline, row.id) end
  if (row.key or '') ~= '' then
    redis.call('SET', KEY .. row.key, row.id .. ' ' .. row.fingerprint .. ' open')
  end
  local n = #records
  records[n + 1] = JOB .. row.id
  records[n + 2] = 'queued ' .. entry .. ' ' .. row.lane .. ' ' .. row.task .. ' ' .. row.at .. more
  return more
end

local function new_line(row, before)     -- task and lane stand once for all that follow with the same
  if before and row.task == before.task and row.lane == before.lane
    and (row.plain or row.tenant == '' and not row.due and row.route == '' and not row.backlog) then
    return row.id .. ' +'
  end
  local line = row.id .. ' + ' .. row.task .. ' ' .. row.lane
  if row.plain then return line end
  return line .. (row.tenant ~= '' and ' tenant=' .. row.tenant or '')
    .. (row.due and ' due=' .. row.due or '')
    .. (row.route ~= '' and ' route=' .. row.route or '')
    .. (row.backlog and ' backlog=' .. row.backlog or '')
end

local function write_accepted()
  for i = 1, #accepted do
    local row = accepted[i]
    if not row.plain and not row.due then queue_up(row) end
    if row.parked then
      parked = parked or {}
      parked[row.id] = true
    end
  end
  if turnstile then turnstile.write() end
  if gates then gates.write() end
  local records, on = {}, #accepted > 0 and mirrored()
  for i = 1, #accepted do
    local row = accepted[i]
    local more = write_record(row, write_place(row), records)
    bump('enqueued:' .. row.lane .. ':' .. row.task, 1)
    lines[#lines + 1] = new_line(row, accepted[i - 1])
    if on then
      tell('p', row.env)
      if more ~= '' then tell('k', more) end
    end
  end
  for i = 1, #records, CHUNK do
    redis.call('MSET', unpack(records, i, math.min(i + CHUNK - 1, #records)))
  end
end

local function tell_parked(replies)      -- what was not decided before all had come: who waits at a gate
  if not parked then return end
  for i = 1, #replies do
    if parked[ARGV[5 * i - 2]] then replies[i] = 'PARKED' end
  end
end
