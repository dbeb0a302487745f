-- restore: open jobs that Redis lost, as the durable record has them; and the end of those that it has ended (D19).
--
-- An open job that is missing comes back under its id, with its epoch, attempt and strikes and the next
-- version: to ready, or into the schedule if `due` is still to come. Its key is its own again; if another job
-- has that by now, it ends `superseded`. A job that is there and open although the record says that it is
-- over ends as the record says, without another move; a worker that holds it is told. One that is there and has
-- gone back goes on, or ends, under the next version: else all that it comes to would be taken for what is known.
-- One that was to be cancelled (`cx` among its lines) begins no more: it ends as cancelled, or is only looked at
-- if it may have had its effect (D14); who holds it is told again.
-- Replies, one per row:  RESTORED | CANCELLED | THERE | SUPERSEDED <job id> | ENDED | FLAGGED | CAUGHT_UP
local tag          = KEYS[1]             -- hash tag of the shard
local clock        = ARGV[1]             -- ms, or '' for Redis TIME
local actor        = ARGV[2]             -- the mirror, for the log
local retention_ms = ARGV[3]             -- how long a finished record stays
-- rows: id head env more text
-- `head` is twelve words: status attempt starts strikes version epoch lane task enqueued_at due class code;
-- `more` the other lines of the record as it was enqueued; `text` that of the error, '' for none.
local script = 'restore'
-- include: fragments/base.lua
-- include: fragments/record.lua
-- include: fragments/transition.lua
-- include: fragments/move.lua
-- include: fragments/make_ready.lua
-- include: fragments/gates.lua
-- include: fragments/turnstile.lua
-- include: fragments/finish.lua
-- include: fragments/commit.lua
local ROW = '^(%l[%l_]+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (%d+) (%S+) (%S+) (%S+)$'
local taken = {}

local function revive(id, head, more)
  local status, attempt, starts, strikes, version, epoch, la, ta, at, due, class, code = match(head, ROW)
  if not status then error('restore row cannot be read: ' .. head) end
  local rec = { id = id, status = status, attempt = attempt + 0, starts = starts + 0, strikes = strikes + 0,
    version = version + 0, epoch = epoch + 0, fence = '0', lease = '0', en = '-', la = la, ta = ta, at = at,
    more = more, added = '', was_lane = la }
  read_lines(rec, more)
  records[id] = rec
  if rec.hg then put(rec, 'hg', '') end  -- what it held, no gate knows any more
  return rec, tonumber(due), class, code
end

local function rival(rec)                -- who has its key by now, or nil
  if (rec.ky or '') == '' then return nil end
  local holder, state = taken[rec.ky], 'open'
  if not holder then
    holder, state = match(redis.call('GET', KEY .. rec.ky) or '', '^(%S+) %S+ (%S+)$')
    if state == 'open' then
      local record = redis.call('GET', JOB .. holder)
      if not record or match(record, '^%S+') == 'failed_terminal' then holder = nil end
    end
  end
  if holder and holder ~= rec.id then return holder end
  return nil
end

local function bring_back(id, head, env, more, text)
  local rec, due, class, code = revive(id, head, more)
  local held, cancel = HELD[rec.status], rec.cx or ''
  if cancel ~= '' and not has_effects(rec) then
    put(rec, 'fi', now_text)
    put(rec, 'ec', 'persistent ' .. cancel)
    move(rec, 'failed_terminal', cancel, ' class=persistent code=' .. cancel)
    return 'CANCELLED'
  end
  local holder = rival(rec)
  if holder then
    put(rec, 'fi', now_text)
    put(rec, 'ec', 'persistent superseded')
    move(rec, 'failed_terminal', 'superseded', ' class=persistent code=superseded')
    return 'SUPERSEDED ' .. holder
  end
  if (rec.ky or '') ~= '' then
    taken[rec.ky] = id
    rec.key_open = format('%s %s open', id, rec.kf or '-')
  end
  if code ~= '-' then put(rec, 'ec', class .. ' ' .. code) end
  if text ~= '' then rec.body = { 'error', text } end
  if cancel ~= '' then put(rec, 'bu', cancel .. ' persistent ' .. cancel) end
  if held then rec.attempt = math.max(0, rec.attempt - 1) end  -- whether it ran is not known: uncharged
  if rec.starts == 0 then put(rec, 'rs', '1') end -- nor whether it had started
  local waits = due and due > now
  move(rec, held and 'queued' or rec.status, 'restored', waits and format(' due=%d', due) or '')
  effect(rec)
  if (rec.dl or '') ~= '' then redis.call('ZADD', DEADLINES, rec.dl, id) end
  if waits then park(rec, env, due) else make_ready(rec, env) end
  return 'RESTORED'
end

local function end_as_known(rec, head)
  local status, _, _, _, version, epoch, _, _, _, _, class, code = match(head, ROW)
  if not status then error('restore row cannot be read: ' .. head) end
  if HELD[rec.status] then
    if (rec.cx or '') ~= '' then return 'THERE' end
    put(rec, 'cx', 'superseded')
    audit[#audit + 1] = rec.id .. ' ' .. text_of[rec.epoch] .. ' cancel_requested'
    return 'FLAGGED'
  end
  release_key(rec, status)
  leave_waits(rec)
  rec.status, rec.version, rec.epoch = status, version + 0, epoch + 0
  if code ~= '-' then put(rec, 'ec', class .. ' ' .. code) end
  put(rec, 'fi', now_text)
  effect(rec)
  rec.drop_env = true
  touch(rec)
  return 'ENDED'
end

local function catch_up(rec, head, more) -- Redis decides what an open job is, the durable record how far its count is
  local _, _, _, _, version, epoch = match(head, ROW)
  if not version then error('restore row cannot be read: ' .. head) end
  version, epoch = version + 0, epoch + 0
  local over = not (WAITING[rec.status] or HELD[rec.status])
  local cancel = not over and (rec.cx or '') == '' and match(more, '\ncx=([^\n]+)')
  if cancel and WAITING[rec.status] then -- before it began for the second time
    rec.version, rec.epoch = math.max(version, rec.version), math.max(epoch, rec.epoch)
    fail(rec, cancel, 'persistent', cancel, '', nil, 'own')
    return 'CANCELLED'
  elseif cancel then
    put(rec, 'cx', cancel)
  end
  if epoch < rec.epoch or epoch == rec.epoch and (version < rec.version or version == rec.version and not over) then
    return cancel and 'FLAGGED' or 'THERE'
  end
  rec.version, rec.epoch = version, epoch
  local class, code = match(over and rec.ec or '', '^(%S+) (%S+)$')
  move(rec, rec.status, 'restored', code and ' class=' .. class .. ' code=' .. code or '')
  if over and mirrored() then
    local text = redis.call('HGET', BODY .. rec.id, code and 'error' or 'result') or not code and rec.re
    if text then tell(code and 'x' or 'r', text) end
  end
  return 'CAUGHT_UP'
end

redis.call('PERSIST', FENCE)             -- allowed under OOM, so the rest is too (R31)
local replies = {}
for i = 4, #ARGV, 5 do
  local id, head = ARGV[i], ARGV[i + 1]
  local rec, over = load(id), match(head, '^succeeded ') or match(head, '^failed_terminal ')
  local reply = 'THERE'
  if not rec and not over then
    reply = bring_back(id, head, ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
  elseif rec and not rec.bad and over and (WAITING[rec.status] or HELD[rec.status]) then
    reply = end_as_known(rec, head)
  elseif rec and not rec.bad and not over then
    reply = catch_up(rec, head, ARGV[i + 3])
  end
  replies[#replies + 1] = reply
end
commit()
return replies
