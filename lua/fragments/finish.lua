-- finish: ends a job. Frees or keeps its key, writes its dead letter, wakes who awaits the result.
--
-- `failed` carries the error; success carries `result`. Results up to 64 bytes stay in the record, so
-- that it remains a listpack; longer values have the body hash.
local QUIET = { cancelled = true, discarded = true, superseded = true }
local SMALL = 64

local function after_cancel(rec, due)    -- D9: only a success wins over a cancel or a deadline
  if (rec.cx or '') ~= '' then return rec.cx end
  local deadline = tonumber(rec.dl or '')
  if deadline and (deadline <= now or due > deadline) then return 'expired' end
  return nil
end

-- D1: what this fence came to, for a re-sent settle: fence outcome by started ended. Returns the fence for
-- the log, since the token that follows has none; nil if there was none. `at_once`: it goes to its stream again.
local function close_claim(rec, outcome, by, at_once)
  local fence = rec.fence
  if fence == '0' then return nil end
  local look = rec.looked or (rec.bu or '') ~= ''
  local began = rec.begun and text_of[now - rec.begun] or rec.status == 'processing' and rec.sa or '-'
  if look then began = match(rec.sd or '', '^%S+ %S+ %S+ (%S+)') or '-' end -- it ran no handler
  put(rec, 'sd', fence .. ' ' .. outcome .. ' ' .. by .. ' ' .. began .. ' ' .. now_text)
  rec.fence, rec.lease = '0', '0'
  if look then return fence end          -- and passed no gates
  if rec.ga then open_gates().free(rec, at_once) end
  return fence
end

local function release_key(rec, final)   -- D11: success keeps the key for its window, anything else frees it
  if (rec.mk or '') ~= '' then           -- those of what was merged into it as well, each for its own window
    effect(rec)
    local found = redis.call('HGETALL', tag .. ':merged_keys:' .. rec.id)
    rec.merged = {}
    for i = 1, #found, 2 do
      local fingerprint, window = match(found[i + 1], '^(%S+) (%d+)$')
      if match(redis.call('GET', KEY .. found[i]) or '', '^%S+') == rec.id then
        rec.merged[found[i]] = { final == 'succeeded' and format('%s %s %s', rec.id, fingerprint, final), window }
      end
    end
  end
  if (rec.ky or '') == '' then return end
  local value = redis.call('GET', KEY .. rec.ky)
  if not value or match(value, '^%S+') ~= rec.id then return end
  effect(rec)
  if final == 'succeeded' then
    rec.key_value = format('%s %s %s', rec.id, rec.kf or '-', final)
  else
    rec.key_free = true
  end
end

local function leave_waits(rec)
  if (rec.dl or '') ~= '' then effect(rec); rec.leave_deadline = true end
  if rec.en == '-' then effect(rec); rec.leave_schedule = true end
  if rec.ec or rec.du then effect(rec) end       -- it has or had a body, which must expire too
  if (rec.wa or '') ~= '' then effect(rec); rec.wake = tonumber(rec.wa) end
  if sub(rec.en, 1, 1) == 'g' or (rec.hg or '') ~= '' then open_gates().leave(rec) end
  ack_entry(rec)
  rec.retire = true
end

local function succeed(rec, reason, result, by)
  rec.strikes = 0
  transition(rec, 'succeeded', reason, nil, close_claim(rec, 'succeeded', by))
  if result ~= '' then
    if mirrored() then tell('r', result) end
    if #result > SMALL or string.find(result, '\n', 1, true) then
      effect(rec)
      rec.body = { 'result', result }
    else
      put(rec, 're', result)
    end
  end
  if rec.bu then put(rec, 'bu', '') end
  release_key(rec, 'succeeded')
  leave_waits(rec)
end

-- D14: whether a job may have committed its effect, so that nobody ends it without a look. A task is known for
-- effects from its first transaction on. One that was restored may have started without anybody knowing.
local function has_effects(rec)
  return (rec.starts > 0 or rec.rs) and not rec.looked and redis.call('HGET', POLICIES, 'effects:' .. rec.ta)
end

local function bury(rec, reason, class, code, text, env, by) -- to be looked at, and only then to be ended
  if HELD[rec.status] then
    local held = close_claim(rec, 'retry', by)
    transition(rec, 'retry_scheduled', 'burial', ' class=' .. class .. ' code=' .. code, held)
    if text ~= '' and mirrored() then tell('x', text) end
  else
    audit[#audit + 1] = rec.id .. ' ' .. text_of[rec.epoch] .. ' burial_requested'
  end
  put(rec, 'bu', reason .. ' ' .. class .. ' ' .. code)
  put(rec, 'ec', class .. ' ' .. code)
  effect(rec)
  if text ~= '' then rec.body = { 'error', text } end
  local kind = sub(rec.en, 1, 1)
  if kind == 'g' or rec.hg then open_gates().leave(rec) end
  rec.unschedule, rec.leave_deadline = kind == 'g' or kind == '-', true
  ack_entry(rec)
  make_ready(rec, env)
end

local function fail(rec, reason, class, code, text, env, by)
  env = envelope(rec, env)               -- read while the entry is still named by the record
  if env and has_effects(rec) then
    if (rec.bu or '') == '' then bury(rec, reason, class, code, text, env, by) end
    return
  end
  if rec.fence == '0' then put(rec, 'fi', now_text) end      -- nobody held it: no `sd` says when
  local held = close_claim(rec, 'failed', by)
  transition(rec, 'failed_terminal', reason, ' class=' .. class .. ' code=' .. code, held)
  if text ~= '' and mirrored() then tell('x', text) end
  put(rec, 'ec', class .. ' ' .. code)
  effect(rec)
  if text ~= '' then rec.body = { 'error', text } end
  rec.drop_env = true
  release_key(rec, 'failed_terminal')
  if not QUIET[code] then
    bump('dead:' .. rec.la .. ':' .. rec.ta, 1)
    bump('dead_of:' .. rec.ta .. ':' .. code, 1)  -- codes that a handler makes up are folded into one (R48)
    rec.dead = { 'id', rec.id, 'task', rec.ta, 'lane', rec.la, 'tenant', rec.tn or '', 'class', class,
      'code', code, 'reason', reason, 'error', text, 'attempt', format('%d', rec.attempt),
      'starts', format('%d', rec.starts), 'strikes', format('%d', rec.strikes),
      'epoch', format('%d', rec.epoch), 'version', format('%d', rec.version), 'at', rec.at or '0',
      'dead_at', now_text, 'worker', (holder(rec)), 'ky', rec.ky or '', 'kf', rec.kf or '',
      'kw', rec.kw or '', 'ms', rec.ms or '', 'env', env or '' }
    if rec.ga then
      rec.dead[#rec.dead + 1] = 'ga'     -- a replay passes the same gates
      rec.dead[#rec.dead + 1] = rec.ga
    end
  end
  leave_waits(rec)
end

local function bury_unreadable(rec, lane, env) -- a record that cannot be read: kept as a dead letter, counted
  effect(rec)
  rec.retire = true
  rec.leave_deadline, rec.leave_schedule = true, true
  release_key(rec, 'failed_terminal')
  bump('dead:' .. lane .. ':' .. (rec.ta or ''), 1)
  bump('dead_of:' .. (rec.ta or '') .. ':bad_record', 1)
  rec.dead = { 'id', rec.id, 'task', rec.ta or '', 'lane', lane, 'tenant', rec.tn or '', 'class', 'unknown',
    'code', 'bad_record', 'reason', 'bad_record', 'error', 'the record cannot be read: ' .. sub(rec.raw, 1, 200),
    'attempt', '0', 'starts', '0', 'strikes', '0', 'epoch', '0', 'version', '0',
    'at', rec.at or format('%d', now), 'dead_at', now_text, 'worker', (holder(rec)),
    'ky', rec.ky or '', 'kf', rec.kf or '', 'kw', rec.kw or '', 'ms', rec.ms or '', 'env', env or '' }
end
