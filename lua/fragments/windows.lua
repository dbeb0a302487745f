-- windows: events that come within a time become one job (docs/decisions/0019).
--
-- The first event of a window is a job that waits in the schedule for the window's end; its envelope is in the body,
-- where it is written anew with what was merged. Items stand at the end of an envelope, before `]}}`, and are opaque.
--   window:<name>       the job that has opened it, and how many it has: as long as the window is open
--   collected:<id>      marks of the items in that job, so that each is taken once
--   merged_keys:<id>    keys that were merged into it, until it ends: key id -> fingerprint, window ms
--   merged:<id>         of an event that was merged: the job
local function open_windows()
  local WINDOW, COLLECTED = tag .. ':window:', tag .. ':collected:'
  local MERGED, MERGED_KEYS = tag .. ':merged:', tag .. ':merged_keys:'
  local SENT_AGAIN_MS = 60000              -- how long a request may be sent again and is still known
  local SPEC = '^(%l+) (%S+) (%d+) (%d+) (%l+) (%d+) (%S+)$'
  local CLOSING, SMALL = 3, 40             -- bytes of `]}}`; a longer item is marked by its digest
  local by_name, known = {}, {}            -- the open windows, or false; all that this call has met
  local pressed = {}

  local function items_of(row, lengths)
    local list, items = {}, {}
    for length in string.gmatch(lengths, '%d+') do list[#list + 1] = tonumber(length) end
    local stop = #row.env - CLOSING
    for i = #list, 1, -1 do
      items[i] = sub(row.env, stop - list[i] + 1, stop)
      stop = stop - list[i] - 1            -- and the comma
    end
    row.before = sub(row.env, 1, stop + 1) -- the envelope up to its first item
    return items
  end

  local function mark_of(item) return #item <= SMALL and '=' .. item or '#' .. redis.sha1hex(item) end

  local function read(row, said)           -- its window; returns where the same request went before
    local mode, name, ms, limit, when, bytes, lengths = match(said, SPEC)
    if not mode then error('window of an enqueue row cannot be read: ' .. said) end
    row.window_of = { name = name, ms = tonumber(ms), limit = tonumber(limit), bytes = tonumber(bytes),
      always = when == 'always', collects = mode == 'collect' }
    if mode == 'collect' then row.items = items_of(row, lengths) end
    return redis.call('GET', MERGED .. row.id)
  end

  local function find(name)                -- the window that is open, or false
    local one = by_name[name]
    if one ~= nil then return one end
    one = false
    local id, count = match(redis.call('GET', WINDOW .. name) or '', '^(%S+) (%d+)$')
    local rec = id and load(id)
    if rec and not rec.bad and rec.status == 'queued' and rec.starts == 0 and rec.en == '-' and (tonumber(rec.du or '') or 0) > now then
      local env = redis.call('HGET', BODY .. id, 'env')
      if env then one = { name = name, id = id, rec = rec, count = tonumber(count), env = env } end
    end
    by_name[name] = one
    return one
  end

  local function note(one)                 -- what this call adds to it
    if one.more then return end
    one.more, one.marks, one.seen, one.keys, one.events, one.size = {}, {}, {}, {}, {}, #one.env
    known[#known + 1] = one
  end

  local function fresh_items(one, items)   -- those that it has not got, each once, with their marks
    local fresh, marks, asked, here = {}, {}, {}, {}
    for i = 1, #items do asked[i] = mark_of(items[i]) end
    local there = one and one.rec and redis.call('SMISMEMBER', COLLECTED .. one.id, unpack(asked)) or {}
    for i = 1, #items do
      if there[i] ~= 1 and not here[asked[i]] and not (one and one.seen and one.seen[asked[i]]) then
        here[asked[i]] = true
        fresh[#fresh + 1], marks[#marks + 1] = items[i], asked[i]
      end
    end
    return fresh, marks
  end

  local function close(one)                -- early: it is full. Its job is to run now
    one.closed = true
    by_name[one.name] = false
    if one.row then one.row.was_due, one.row.due = one.row.due, nil end
  end

  local function add(one, row, fresh, marks)
    if row.window_of.collects then
      for i = 1, #fresh do
        one.more[#one.more + 1], one.marks[#one.marks + 1] = fresh[i], marks[i]
        one.seen[marks[i]] = true
        one.size = one.size + #fresh[i] + 1
      end
      one.count = one.count + #fresh
    else
      one.env, one.size, one.count = row.env, #row.env, one.count + 1
    end
    one.events[#one.events + 1] = row.id
    if row.key ~= '' then
      one.keys[#one.keys + 1] = row.key
      one.keys[#one.keys + 1] = row.fingerprint .. ' ' .. row.window
      seen_keys[row.key] = { one.id, row.fingerprint, 'queued' }
    end
    bump('coalesced:' .. row.lane .. ':' .. row.task, 1)
    if one.count >= row.window_of.limit then close(one) end
  end

  local function merge(row)                -- the job that it went into, or nil
    local window = row.window_of
    local one = find(window.name)
    if not one then return nil end
    note(one)
    if one.rec and tonumber(one.rec.du) - now > window.ms then -- opened by a clock that was ahead: nobody waits so long
      close(one)
      return nil
    end
    local fresh, marks, size, count = {}, {}, #row.env, 1
    if window.collects then
      fresh, marks = fresh_items(one, row.items)
      size, count = one.size, #fresh
      for i = 1, #fresh do size = size + #fresh[i] + 1 end
    end
    if one.count + count > window.limit or size > window.bytes then
      close(one)
      return nil
    end
    add(one, row, fresh, marks)
    return one.id
  end

  local function is_pressed(lane)
    if pressed[lane] == nil then
      local level = redis.call('HGET', POLICIES, 'pressure:' .. lane)
      pressed[lane] = level == 'high' or level == 'over'
    end
    return pressed[lane]
  end

  local function open(row)                 -- it is the first: it waits for the others, unless it is full by itself
    local window, count, marks = row.window_of, 1, {}
    if window.collects then
      local fresh
      fresh, marks = fresh_items(nil, row.items)
      if #fresh < #row.items then row.env = row.before .. table.concat(fresh, ',') .. ']}}' end
      count = #fresh
    end
    if count >= window.limit or not (window.always or is_pressed(row.lane)) then return end
    row.due = format('%d', now + window.ms)
    local one = { name = window.name, id = row.id, row = row, count = count, env = row.env }
    note(one)
    for i = 1, #marks do one.marks[i], one.seen[marks[i]] = marks[i], true end
    by_name[window.name] = one
  end

  local function seal()                    -- what this call's own jobs have come to, before they are written
    for _, one in ipairs(known) do
      if #one.more > 0 then one.env = sub(one.env, 1, -CLOSING - 1) .. ',' .. table.concat(one.more, ',') .. ']}}' end
      if one.row then
        one.row.env = one.env
        if #one.keys > 0 then one.row.merged = #one.keys / 2 end
      end
    end
  end

  local function put_many(command, key, list)
    for i = 1, #list, CHUNK do redis.call(command, key, unpack(list, i, math.min(i + CHUNK - 1, #list))) end
  end

  local function write()                   -- before `commit`, whose are the records and the log
    for _, one in ipairs(known) do
      local rec = one.rec
      if rec and #one.events > 0 then
        redis.call('HSET', BODY .. rec.id, 'env', one.env)
        put_many('SADD', COLLECTED .. rec.id, one.marks)   -- not before the envelope has them
        move(rec, 'queued', 'merged', format(' events=%d', #one.events))
        if mirrored() then tell('p', one.env) end
        if #one.keys > 0 then put(rec, 'mk', format('%d', (tonumber(rec.mk or '') or 0) + #one.keys / 2)) end
      end
      if rec and one.closed then
        make_ready(rec, one.env)
        rec.unschedule = true
      end
    end
  end

  local function remember(one)
    local left = format('%d', math.max(1, tonumber(one.rec and one.rec.du or one.row.due or one.row.was_due) - now))
    if one.row then put_many('SADD', COLLECTED .. one.id, one.marks) end
    if one.closed then
      redis.call('DEL', COLLECTED .. one.id)
    else
      redis.call('PEXPIRE', COLLECTED .. one.id, left)
    end
    put_many('HSET', MERGED_KEYS .. one.id, one.keys)
    for i = 1, #one.keys, 2 do
      redis.call('SET', KEY .. one.keys[i], one.id .. ' ' .. match(one.keys[i + 1], '^%S+') .. ' open')
    end
    for i = 1, #one.events do redis.call('SET', MERGED .. one.events[i], one.id, 'PX', SENT_AGAIN_MS) end
    if by_name[one.name] == one then
      redis.call('SET', WINDOW .. one.name, one.id .. ' ' .. format('%d', one.count), 'PX', left)
    elseif by_name[one.name] == false then
      redis.call('DEL', WINDOW .. one.name)
    end
  end

  local function finish()                  -- after it: a key leads to a record that knows that it has such
    for _, one in ipairs(known) do remember(one) end
  end

  return { read = read, merge = merge, open = open, seal = seal, write = write, finish = finish }
end
