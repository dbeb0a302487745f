-- commit: all writes of a script, in the order of D3, so that an error at any point leaves a job where it
-- was or in two places, of which the record honours one.
--
-- 1 a write that is allowed under OOM, since only a script's first write is checked (R31);
-- 2 the fence counter and the event; 3 what the decisions entail: bodies, streams, schedule, dead letters,
-- keys; 4 the records; 5 clean-up, with the keys that are free now, XACK and XDEL last.
-- Needs: script (name for the log), actor (worker or operator), retention_ms.
local function write_effects()
  if turnstile then turnstile.write() end
  for i = 1, #effects do
    local rec = effects[i]
    if rec.body then redis.call('HSET', BODY .. rec.id, unpack(rec.body)) end
    if rec.ready then
      local entry = redis.call('XADD', LANE .. rec.la .. (SUFFIX[rec.kind] or ':turn:' .. rec.tn), '*', 'id', rec.id, 'env', rec.ready)
      touch(rec)
      rec.en = rec.kind .. ':' .. entry
    end
    if rec.due then
      redis.call('HSET', BODY .. rec.id, 'env', rec.env)
      redis.call('ZADD', SCHEDULE, format('%d', rec.due), rec.id)
    elseif rec.keep_env then
      redis.call('HSET', BODY .. rec.id, 'env', rec.keep_env)
    end
    if rec.dead then
      local letter = redis.call('XADD', DLQ, '*', unpack(rec.dead))
      if not rec.bad then put(rec, 'dq', letter) end
    end
    if rec.key_value then
      redis.call('SET', KEY .. rec.ky, rec.key_value, 'PX', rec.kw or '86400000')
    elseif rec.key_open then
      redis.call('SET', KEY .. rec.ky, rec.key_open)
    end
    if rec.merged then
      for key, kept in pairs(rec.merged) do
        if kept[1] then redis.call('SET', KEY .. key, kept[1], 'PX', kept[2]) end
      end
    end
  end
  if gates then gates.write() end
end

local function write_records()
  local open = open_texts                -- names and lines: open records have no TTL (R43)
  for i = 1, #over_texts, 2 do
    redis.call('SET', over_texts[i], over_texts[i + 1], 'PX', retention_ms)
  end
  for i = 1, #dirty do
    local rec = dirty[i]
    local was, is = rec.was, place(rec.status, rec.en)
    if is then
      open[#open + 1] = JOB .. rec.id
      open[#open + 1] = line_of(rec)
    else
      redis.call('SET', JOB .. rec.id, line_of(rec), 'PX', retention_ms)
    end
    if is ~= was or rec.la ~= rec.was_lane then
      if was then count_move(was .. rec.was_lane, rec.ta, -1) end
      if is then count_move(is .. rec.la, rec.ta, 1) end
    end
  end
  for i = 1, #open, CHUNK do
    redis.call('MSET', unpack(open, i, math.min(i + CHUNK - 1, #open)))
  end
  for field, tasks in pairs(moved) do    -- by task as well; what arrives in a stream is counted by `enqueued`
    local all = 0
    for task, by in pairs(tasks) do
      all = all + by
      if by ~= 0 then redis.call('HINCRBY', DEPTHS, field .. ':' .. task, text_of[by]) end
    end
    bump(field, all)
  end
end

local function clean_up()
  for i = 1, #effects do
    local rec = effects[i]
    if rec.leave_schedule or rec.unschedule then redis.call('ZREM', SCHEDULE, rec.id) end
    if rec.leave_deadline then redis.call('ZREM', DEADLINES, rec.id) end
    if rec.key_free then redis.call('DEL', KEY .. rec.ky) end  -- not before its job is over
    if rec.merged then
      for key, kept in pairs(rec.merged) do
        if not kept[1] then redis.call('DEL', KEY .. key) end
      end
      redis.call('DEL', tag .. ':merged_keys:' .. rec.id)  -- last of these: `repair` looks for it
    end
    if rec.drop_env or (rec.ready and (rec.unschedule or rec.unpark)) then redis.call('HDEL', BODY .. rec.id, 'env') end
    if rec.retire then
      if rec.bad then redis.call('PEXPIRE', JOB .. rec.id, retention_ms) end
      redis.call('PEXPIRE', BODY .. rec.id, retention_ms)
    elseif rec.reopen then
      redis.call('DEL', BODY .. rec.id)
    end
    if rec.wake then
      for _ = 1, math.min(rec.wake, 100) do redis.call('RPUSH', DONE .. rec.id, rec.status) end
      redis.call('PEXPIRE', DONE .. rec.id, 60000)
    end
  end
  if gates then gates.clean() end
  for field, by in pairs(counters) do
    if by ~= 0 then redis.call('HINCRBY', STATS, field, format('%d', by)) end
  end
  for stream, ids in pairs(acks) do
    for i = 1, #ids, CHUNK do
      local last = math.min(i + CHUNK - 1, #ids)
      redis.call('XDEL', stream, unpack(ids, i, last))     -- a pending id without entry is found again (R1)
      redis.call('XACK', stream, 'workers', unpack(ids, i, last))
    end
  end
  if turnstile then turnstile.clean() end
end

local function commit(fence)
  if gates then gates.grant() end
  for i = 1, #dirty do
    if dirty[i].tn then
      open_turnstile().turn()
      break
    end
  end
  redis.call('PERSIST', FENCE)
  if fence then redis.call('SET', FENCE, format('%d', fence)) end
  if #lines > 0 or #audit > 0 then
    add_event(script, actor)
  end
  write_effects()
  write_records()
  clean_up()
end
