-- settle_step: start marks and outcomes, each checked on status and fence (D1).
--
-- A row begins with a head. That of a success has four words, the others have ten, '-' where there is
-- nothing:
--   S fence started_ago reason
--   kind fence version started_ago by reason class code delay_ms policy
-- and goes on with the job id, then by kind:
--   S success   result                         -> succeeded
--   M mark                                     claimed -> processing
--   R retry     error text, envelope           -> retry_scheduled
--   F fail      error text, envelope           -> failed_terminal
--   L release   gates, envelope                -> queued, the attempt given back; `gates` if the reason is regated
-- What is to be ended, and has to be looked at first, is answered by `OK burial`.
-- Of a job that is to be buried (D14), S says that its effect was committed, F with reason `buried` that it was
-- not, R with reason `burial_waits` that nobody could tell; all else hands it back as it was.
-- `started_ago` is how many ms before this call the handler began ('-': it did not run here). `by` is
-- own, recovered or died; a recovery also names the version and, in place of `started_ago`, the lease that it
-- judged: another is a claim that lives again (D6).
-- died is the owner's word that the process which ran the handler is dead, and nobody else with it (D22).
local HEAD = '^(%a) (%d+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$'
local SUCCESS = '^S (%d+) (%d+) (%S+)$'
local EXPECTED = { M = 2, S = 3, R = 4, F = 4, L = 4 }

local function settled_before(rec, fence)
  local last, outcome, by = match(rec.sd or '', '^(%d+) (%S+) (%S+)')
  if last == fence and by ~= 'recovered' then return 'ALREADY ' .. outcome end
  return 'STALE'
end

local function refusal(rec, fence)       -- the reply when the claim is not this fence's (any more), else nil
  if rec.bad or not HELD[rec.status] or rec.fence ~= fence then return settled_before(rec, fence) end
  return nil
end

local function begin(rec, started_ago)   -- claimed -> processing, in the line of the outcome that follows
  local ago = tonumber(started_ago) or 0
  step(rec, 'processing')
  rec.begun, rec.tried = ago, rec.attempt
end

local function regate(rec, list)         -- D17: it passes other gates from now on
  put(rec, 'ga', list)
  if list == '' then rec.ga = nil end
  if (rec.hg or '') ~= '' then open_gates().sort_out(rec) end
end

local function end_attempt(rec, kind, by, reason, class, code, delay, policy, text, env)
  local due = now + delay
  local over = kind ~= 'F' and after_cancel(rec, due) or nil
  if kind == 'F' and (rec.cx or '') ~= '' then over = rec.cx end
  if over then return fail(rec, over, 'persistent', over, text, env, by) end
  if kind ~= 'F' then
    env = envelope(rec, env)
    if not env then
      return fail(rec, 'entry_deleted', 'unknown', 'entry_deleted', text, '', by)
    end
  end
  if kind == 'F' then
    return fail(rec, reason, class, code, text, env, by)
  end
  local facts = ''
  if kind == 'R' then
    facts = format(' class=%s code=%s due=%d policy=%s', class, code, due, policy)
  elseif delay > 0 then
    facts = format(' due=%d', due)
  end
  local held = close_claim(rec, kind == 'R' and 'retry' or 'released', by, delay == 0)
  transition(rec, kind == 'R' and 'retry_scheduled' or 'queued', reason, facts, held)
  if kind == 'R' and text ~= '' and mirrored() then tell('x', text) end
  if kind == 'R' then
    put(rec, 'ec', class .. ' ' .. code)
    if text ~= '' then effect(rec); rec.body = { 'error', text } end
  end
  if kind == 'L' and reason == 'regated' then regate(rec, text) end
  ack_entry(rec)
  if delay > 0 then park(rec, env, due) else make_ready(rec, env) end
end

local function end_burial(rec, kind, reason, delay, text, env, by)
  if kind == 'F' and reason == 'buried' then
    local why, class, code = match(rec.bu, '^(%S+) (%S+) (%S+)$')
    put(rec, 'bu', '')
    rec.looked = true
    return fail(rec, why, class, code, redis.call('HGET', BODY .. rec.id, 'error') or '', env, 'own')
  end
  env = envelope(rec, env)
  rec.looked = not env                   -- without it nobody could look again
  if rec.looked then
    put(rec, 'bu', '')
    return fail(rec, 'entry_deleted', 'unknown', 'entry_deleted', text, '', by)
  end
  local waits = kind == 'R' and reason == 'burial_waits'
  local held = close_claim(rec, waits and 'retry' or 'released', by)
  if waits then
    transition(rec, 'retry_scheduled', reason, format(' due=%d', now + delay), held)
  else
    transition(rec, 'queued', reason, nil, held)
  end
  ack_entry(rec)
  if waits then park(rec, env, now + delay) else make_ready(rec, env) end
end

-- include: fragments/settle_ordinary.lua

local function settle_success(head, id, name, raw, result)
  local fence, started_ago, reason = match(head, SUCCESS)
  if not fence then error('settle row cannot be read: ' .. head) end
  if settle_ordinary(id, name, raw, fence, started_ago, reason, result) then return 'OK' end
  local rec = load(id, raw)
  if not rec then return 'GONE' end
  local refused = refusal(rec, fence)
  if refused then return refused end
  if rec.status == 'claimed' then begin(rec, started_ago) end
  if rec.ut and rec.ut ~= '' then put(rec, 'ut', '') end
  succeed(rec, reason, result, 'own')
  return 'OK'
end

local function settle_mark(rec, started_ago)
  if rec.status == 'claimed' then
    local ago = tonumber(started_ago) or 0
    rec.lease = format('%d', now + lease_ms)
    put(rec, 'sa', format('%d', now - ago))
    transition(rec, 'processing', 'started', nil, nil, ago)
  end
  return 'OK'
end

local function judged_before(rec, version, lease)  -- whether it has moved or was renewed since (D6)
  return rec.version ~= tonumber(version) or rec.lease ~= lease
end

local function settle_row(head, id, raw, text, env)
  local kind, fence, version, started_ago, by, reason, class, code, delay, policy = match(head, HEAD)
  if not kind then error('settle row cannot be read: ' .. head) end
  local rec = load(id, raw)
  if not rec then return 'GONE' end
  local refused = refusal(rec, fence)
  if refused then return refused end
  local recovered, died = by == 'recovered', by == 'died'
  if recovered and judged_before(rec, version, started_ago) then return 'STALE' end
  if rec.bu and kind ~= 'M' then
    end_burial(rec, kind, reason, tonumber(delay) or 0, text, env, by)
    return kind == 'F' and rec.bu ~= '' and 'OK burial' or 'OK'
  end
  if kind == 'M' then return settle_mark(rec, started_ago) end
  local charged = kind ~= 'L' and not (recovered and rec.status == 'claimed')
  if recovered then
    rec.strikes = rec.strikes + 1
    bump('recovered:' .. rec.la .. ':' .. rec.ta, 1)
  elseif started_ago ~= '-' then
    if rec.status == 'claimed' then begin(rec, started_ago) end
    if died then
      rec.strikes = rec.strikes + 1
      bump('died:' .. rec.la .. ':' .. rec.ta, 1)
    elseif kind ~= 'L' then
      rec.strikes = 0                    -- only a handler that ran to an end clears them (D22)
    end
  end
  if not charged then rec.attempt = math.max(0, rec.attempt - 1) end
  if reason == 'unknown_task' and kind == 'L' then -- bounded by age, not by starts
    rec.starts = math.max(0, rec.starts - 1)
    if (rec.ut or '') == '' then put(rec, 'ut', now_text) end
  elseif (rec.ut or '') ~= '' then
    put(rec, 'ut', '')
  end
  end_attempt(rec, kind, by, reason, class, code, tonumber(delay) or 0, policy, text, env)
  return (rec.bu or '') ~= '' and 'OK burial' or 'OK'
end

local function settle_rows(at)           -- rows from ARGV[at] to the end; a reply for each
  local args, rows, kinds, ids = ARGV, {}, {}, {}
  local last, n = #args, 0
  while at <= last do
    local kind = sub(args[at], 1, 1)
    local size = EXPECTED[kind]
    if not size or at + size - 1 > last then
      error('settle row cannot be read: ' .. args[at])
    end
    n = n + 1
    rows[n], kinds[n], ids[n] = at, kind, args[at + 1]
    at = at + size
  end
  local raws, names = preload(ids)
  local replies = {}
  for i = 1, n do
    local row = rows[i]
    if kinds[i] == 'S' then
      replies[i] = settle_success(args[row], ids[i], names[i], raws[i], args[row + 2])
    else
      replies[i] = settle_row(args[row], ids[i], raws[i], args[row + 2], args[row + 3])
    end
  end
  return replies
end
