-- replay: failed_terminal -> queued, by an operator only, named by its dead letter and epoch (D23).
--
-- Starts a new epoch with attempt, starts, strikes, cancel flag and deadline reset, takes the idempotency
-- key again, and removes the dead letter. Works from the dead letter alone when the record has expired.
-- Replies, one per row:  OK | ALREADY | KEY_TAKEN <job id> | GONE
local tag          = KEYS[1]             -- hash tag of the shard
local clock        = ARGV[1]             -- ms, or '' for Redis TIME
local actor        = ARGV[2]             -- who asks, for the log
local retention_ms = ARGV[3]             -- how long a finished record stays
-- rows: letter id epoch task
-- `task` is what the envelope says, for a dead letter whose record could not be read; else '-'.
local script = 'replay'
-- include: fragments/base.lua
-- include: fragments/record.lua
-- include: fragments/transition.lua
-- include: fragments/make_ready.lua
-- include: fragments/gates.lua
-- include: fragments/turnstile.lua
-- include: fragments/finish.lua
-- include: fragments/commit.lua
-- include: fragments/revive.lua
local letters, taken = {}, {}

local function dead_letter(letter)
  local found = redis.call('XRANGE', DLQ, letter, letter)[1]
  if not found then return nil end
  local fields = {}
  for i = 1, #found[2], 2 do fields[found[2][i]] = found[2][i + 1] end
  return fields
end

local function reserve_key(rec)          -- nil, or who has it by now
  if (rec.ky or '') == '' then return nil end
  local holder, state = taken[rec.ky], 'open'
  if not holder then
    holder, state = match(redis.call('GET', KEY .. rec.ky) or '', '^(%S+) %S+ (%S+)$')
    if state == 'open' then                -- free if its job is gone (R43) or failed
      local record = redis.call('GET', JOB .. holder)
      if not record or match(record, '^%S+') == 'failed_terminal' then holder = nil end
    end
  end
  if holder and holder ~= rec.id then return holder end
  taken[rec.ky] = rec.id
  rec.key_open = format('%s %s open', rec.id, rec.kf or '-')
  return nil
end

local function replay(letter, id, epoch, task)
  local dead = dead_letter(letter)
  local rec = load(id)
  if not dead or dead.id ~= id then return rec and 'ALREADY' or 'GONE' end
  if dead.epoch ~= epoch then return 'ALREADY' end
  if rec and (rec.bad or rec.status ~= 'failed_terminal' or rec.epoch ~= tonumber(epoch)) then
    return 'ALREADY'
  end
  local known_as = dead.task or ''       -- to whoever counted the dead letter
  if known_as == '' then dead.task = task end
  if dead.task == '-' or (dead.env or '') == '' then return 'GONE' end
  rec = rec or revive(id, dead)
  local holder = reserve_key(rec)
  if holder then return 'KEY_TAKEN ' .. holder end
  rec.attempt, rec.starts, rec.strikes, rec.epoch = 0, 0, 0, rec.epoch + 1
  transition(rec, 'queued', 'replayed')
  tell('p', dead.env)                    -- for a mirror: an operator may have edited it
  for _, field in ipairs({ 'cx', 'dl', 'sd', 'ec', 're', 'fi', 'sa', 'ut', 'dq', 'pl' }) do
    if (rec[field] or '') ~= '' then put(rec, field, '') end
  end
  if rec.ga then open_gates().line_up(rec) end
  make_ready(rec, dead.env)
  rec.reopen = true
  letters[#letters + 1] = letter
  bump('replayed:' .. (dead.lane or '') .. ':' .. known_as, 1)
  return 'OK'
end

local replies = {}
for i = 4, #ARGV, 4 do
  replies[#replies + 1] = replay(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
end
if #letters > 0 then
  commit()
  redis.call('XDEL', DLQ, unpack(letters))
end
return replies
