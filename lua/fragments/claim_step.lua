-- claim_step: offered entries first, then the lanes as planned; D5's table decides each entry.
--
-- Needs worker, session, lease_ms, limit, shared, offers, plan. `offers` has a row `lane kind entry` for
-- each entry that was delivered to this worker but is not running; `plan` a row `lane reserved quota
-- phase` for each lane, most owed first. phase `q` reads one job of that lane's quarantine instead (D22);
-- if it is reserved, that job has a slot of its own, beside `limit`.
-- A claim is answered by three values: head, id, envelope. The head's words: the state token's eight, then
-- lane kind entry age past_deadline unknown_age, the last three in ms relative to now, or '-'; then its gates, or
-- the word `bury` and what it ends by: look for its committed effect, and settle (D14).
-- The kind is a capital letter if the job was retry_scheduled.
-- The verdict is NOSESSION, or OK and words: a lane that is paused, `lane=result=count` of entries that led
-- nowhere (missing, final, conflict, bad_record), or `g:gate=parked=count` of jobs that wait there now.
local MAX_STARTS = 20
local TIMERS_SERVED = 4                  -- timers that a call serves on its way
local LEAVE = 64                         -- entries of one call that may be looked at and not taken
local claims = {}
local left = tonumber(limit)
local shared_left = tonumber(shared)
local holding = worker .. ' ' .. session
local lease_until = format('%d', now + lease_ms)
local fence, fence_text, last_fence
local left_alone = 0
local pausing = false                    -- whether anything is paused
local refused                            -- 'lane=result' -> entries that were not taken, once there is one
local order, rows = {}, {}               -- the plan's rows in order, and by lane and kind of stream
for lane, reserved, quota, phase in string.gmatch(plan, '(%S+) (%d+) (%d+) (%w+)') do
  local row = { lane = lane, free = tonumber(reserved), quota = tonumber(quota), phase = tonumber(phase) }
  order[#order + 1] = row
  if phase == 'q' then
    row.quarantine = true
    rows[lane .. 'q'] = row
  else
    rows[lane .. 'a'], rows[lane .. 'r'] = row, row
  end
end

local function next_fence()              -- D4: it survives a flush and stays below 2^53
  if not fence then
    fence = math.max(tonumber(last_fence or '0'), now * 1024 - 1)
  end
  fence = fence + 1
  fence_text = format('%d', fence)
  return fence_text
end

local function new_claim(rec)
  rec.fence, rec.lease = next_fence(), lease_until
end

-- A time as ms before now, so that no worker's clock is compared with Redis's; '-' for none.
local function since(time)
  return time and time ~= '' and text_of[now - time] or '-'
end

local function source_of(lane, kind, stream, offered) -- where entries come from, and the plan's row for them
  return { lane = lane, stream = stream, row = rows[lane .. kind], offered = offered, prefix = kind .. ':',
    between = ' ' .. lane .. ' ', words = ' ' .. lane .. ' ' .. kind .. ' ',
    retried = ' ' .. lane .. ' ' .. string.upper(kind) .. ' ', claimed = {} }
end

local function has_slot(row)
  if row and row.most and row.most <= 0 then return false end
  if row and row.quarantine then return row.free > 0 end   -- a slot of its own, beside limit and shared
  return left > 0 and row and (row.free > 0 or shared_left > 0)
end

local function grant_claim(rec, from, entry, env, was)
  if from.offered then                   -- a sweep may have taken it over: it is pending for its holder again
    redis.pcall('XCLAIM', from.stream, 'workers', worker, 0, entry, 'JUSTID')  -- the group may be gone (R9)
  end
  local row, n = from.row, #claims
  if row.most then row.most = row.most - 1 end
  local words = was == 'retry_scheduled' and from.retried or from.words
  claims[n + 1] = rec.token .. words .. entry .. ' ' .. since(rec.at) .. ' ' .. since(rec.dl) .. ' '
    .. since(rec.ut) .. (rec.bu and ' bury ' .. rec.bu or rec.ga and ' ' .. rec.ga or '')
  claims[n + 2] = rec.id
  claims[n + 3] = env
  if row.quarantine then
    row.free = 0
    return
  end
  left = left - 1
  if row.free > 0 then row.free = row.free - 1 else shared_left = shared_left - 1 end
end

local function not_taken(what)
  refused = refused or {}
  refused[what] = (refused[what] or 0) + 1
  left_alone = left_alone + 1
end

local function reject(lane, stream, entry, result)
  drop(stream, entry)
  bump('claims:' .. result, 1)
  not_taken(lane .. '=' .. result)
end

local function take_waiting(rec, from, entry, env)
  local burial = (rec.bu or '') ~= ''    -- neither gates nor limits concern it, and nothing is charged
  if not burial then
    if (rec.dl or '') ~= '' and tonumber(rec.dl) <= now then
      left_alone = left_alone + 1
      return fail(rec, 'expired', 'persistent', 'expired', '', env, 'own')
    end
    if rec.starts >= (rec.ms and tonumber(rec.ms) or MAX_STARTS) then
      left_alone = left_alone + 1
      return fail(rec, 'too_many_starts', 'unknown', 'too_many_starts', '', env, 'own')
    end
  end
  if not has_slot(from.row) then         -- delivered, but there is no slot: back to ready, uncharged
    ack_entry(rec)
    return make_ready(rec, env)
  end
  if not burial then
    if (rec.ga or pausing) and not open_gates().pass(rec, env) then
      return not_taken(rec.en .. '=parked')
    end
    rec.attempt, rec.starts = rec.attempt + 1, rec.starts + 1
  end
  local was = rec.status
  new_claim(rec)
  put(rec, 'ow', holding)
  if burial then transition(rec, 'claimed', 'burial') else transition(rec, 'claimed', 'claimed') end
  grant_claim(rec, from, entry, env, was)
end

local function take_held(rec, from, entry, env)
  local owner, of_session = holder(rec)
  if owner ~= worker then                -- somebody else's
    give_back(rec, from.stream, entry)
  elseif from.offered and rec.status == 'claimed' and of_session < tonumber(session) then
    if not has_slot(from.row) then
      local over = not rec.bu and after_cancel(rec, now)
      if not rec.bu then rec.attempt = math.max(0, rec.attempt - 1) end
      if over then return fail(rec, over, 'persistent', over, '', env, 'own') end
      transition(rec, 'queued', 'no_slot', nil, close_claim(rec, 'released', 'own', true))
      ack_entry(rec)
      return make_ready(rec, env)
    end
    new_claim(rec)
    put(rec, 'ow', holding)              -- its reply was lost: the same claim again, uncharged
    rec.token = token_of(rec)
    return grant_claim(rec, from, entry, env)
  end
  left_alone = left_alone + 1
end

local function take(from, entry, id, env, raw)
  local rec = load(id, raw)
  if not rec then return reject(from.lane, from.stream, entry, 'missing') end
  if rec.bad then
    bury_unreadable(rec, from.lane, env)
    bump('queued:' .. from.lane, -1)
    return reject(from.lane, from.stream, entry, 'bad_record')
  end
  local waits = WAITING[rec.status]
  if not waits and not HELD[rec.status] then return reject(from.lane, from.stream, entry, 'final') end
  if rec.la ~= from.lane or rec.en ~= from.prefix .. entry then return reject(from.lane, from.stream, entry, 'conflict') end
  if waits then return take_waiting(rec, from, entry, env) end
  return take_held(rec, from, entry, env)
end

-- include: fragments/claim_ordinary.lua

local drained = {}                       -- streams that gave less than they were asked for: no need to ask again

local function read(lane, kind, count)   -- how many entries were delivered
  local stream = LANE .. lane .. SUFFIX[kind]
  if drained[stream] then return 0 end
  local reply
  for try = 1, 2 do
    -- pcall: XREADGROUP is never refused under OOM, and a missing group (R9) is made again at 0 (R8)
    reply = redis.pcall('XREADGROUP', 'GROUP', 'workers', worker, 'COUNT', count, 'STREAMS', stream, '>')
    if not reply then
      drained[stream] = true
      return 0
    end
    if not reply.err then break end
    if try == 2 or not string.find(reply.err, 'NOGROUP', 1, true) then error(reply.err) end
    redis.call('XGROUP', 'CREATE', stream, 'workers', '0', 'MKSTREAM')
  end
  local entries = reply[1][2]
  if #entries < count then drained[stream] = true end
  local from, ids = source_of(lane, kind, stream, false), {}
  for i = 1, #entries do ids[i] = entries[i][2][2] end
  local raws, names = preload(ids)
  local plain = kind == 'a' and not pausing
  for i = 1, #entries do
    local entry, id, raw = entries[i], ids[i], raws[i]
    if not (plain and take_ordinary(from, entry[1], id, names[i], entry[2][4], raw)) then
      take(from, entry[1], id, entry[2][4], raw)
    end
  end
  if plain then count_ordinary(from) end
  return #entries
end

local function ready_share(phase, count) -- ready before arrivals, except each 4th while both wait
  local share = 0
  for i = phase, phase + count - 1 do
    if i % 4 ~= 3 then share = share + 1 end
  end
  return share
end

local function read_lane(row, count)     -- as many claims as the lane has, up to count
  local before = left
  if row.quarantine then
    read(row.lane, 'q', 1)
    return before - left
  end
  local share = ready_share(row.phase, count)
  if share > 0 then read(row.lane, 'r', share) end
  local missing = count - (before - left)
  if missing > 0 then read(row.lane, 'a', missing) end
  missing = count - (before - left)
  if missing > 0 and share < count then read(row.lane, 'r', missing) end
  row.phase = (row.phase + before - left) % 4
  return before - left
end

local function claim_offered()
  for lane, kind, entry in string.gmatch(offers, '(%S+) (%a) (%S+)') do
    local stream = LANE .. lane .. SUFFIX[kind]
    local found = redis.call('XRANGE', stream, entry, entry)[1]
    if found then
      take(source_of(lane, kind, stream, true), entry, found[2][2], found[2][4])
    else
      reject(lane, stream, entry, 'missing')   -- deleted under us (R1): `repair` finds the record
    end
  end
end

local function claim_planned()
  for pass = 1, 2 do                     -- first each lane's share, then what others left of theirs
    for i = 1, #order do
      local row = order[i]
      local extra = pass == 1 and math.min(shared_left, row.quota) or shared_left
      local count = math.min(left, row.free + extra)
      if row.quarantine then count = math.min(1, row.free) end
      if row.most then count = math.min(count, row.most) end
      if count > 0 and not row.dry and left_alone < LEAVE then
        local got = read_lane(row, count)
        row.dry = got < count
      end
    end
  end
end

local function claim_jobs()              -- D5: without this session, a late call finds nothing
  if redis.call('HGET', WORKER .. worker, 'session') ~= session then return 'NOSESSION' end
  turn_most = math.max(turn_most, tonumber(limit))
  last_fence, pausing = unpack(redis.call('MGET', FENCE, tag .. ':pauses'))
  local verdict = 'OK'
  if pausing then
    for _, row in ipairs(order) do
      local most, state = open_gates().share_of(row.lane)
      row.ramps = state == 'ramp'
      if not (row.ramps and row.quarantine) then row.most = most end
    end
  end
  claim_offered()
  claim_planned()
  if pausing then
    for _, row in ipairs(order) do
      if row.most and row.most <= 0 then verdict = verdict .. ' ' .. row.lane .. (row.ramps and '~' or '') end
    end
  end
  for what, count in pairs(refused or {}) do verdict = verdict .. ' ' .. what .. '=' .. text_of[count] end
  if gates then gates.wake(TIMERS_SERVED) end            -- so a busy fleet needs no scheduler
  return verdict
end
