-- turnstile: of one tenant, few unclaimed jobs stand in a lane's streams; the rest wait behind, in order (D15).
--
-- So a tenant with 100,000 jobs stands before nobody. `lane:<lane>:turn:<tenant>` is the stream of those behind;
-- `turnstile` counts, by `lane tenant`, who stands and who waits. Whoever stops standing, for any cause, moves
-- the next in. Struck jobs wait in quarantine, which does not count. Jobs without a tenant pay nothing.
--
-- Streams are read in order, so a tenant's part of the starts is its part of those who stand. A flood, with more
-- behind than FLOOD, stands with what the others of its lane leave, and a quarter at least (docs/decisions/0025);
-- by `lane`, `turnstile` counts those who stand of tenants that are no flood.
local function open_turnstile()
  if turnstile then return turnstile end
  local TURNSTILE = tag .. ':turnstile'
  local FLOOD = 256
  local STANDING = { a = true, r = true }
  local turns = {}                         -- 'lane tenant' -> who stands and waits there
  local calm_in = {}                       -- lane -> who stands there of tenants that are no flood, as written

  local function turn_of(lane, tenant)
    local name = lane .. ' ' .. tenant
    local turn = turns[name]
    if not turn then
      local found = redis.call('HMGET', TURNSTILE, name, lane)
      local stand, wait = match(found[1] or '0 0', '^(%d+) (%d+)$')
      turn = { key = LANE .. lane .. ':turn:' .. tenant, lane = lane, stand = stand + 0, wait = wait + 0 }
      turn.written_stand, turn.written_wait = turn.stand, turn.wait
      turns[name] = turn
      calm_in[lane] = calm_in[lane] or tonumber(found[2] or '0')
    end
    return turn
  end

  local function calm(stand, wait) return wait > FLOOD and 0 or stand end

  local function admit(turn, most)         -- whether one more may stand; counts it either way
    local free = turn.wait == 0 and turn.stand < most
    if free then turn.stand = turn.stand + 1 else turn.wait = turn.wait + 1 end
    turn.changed = true
    return free
  end

  local function stands(rec)               -- after this call
    if not WAITING[rec.status] or rec.strikes > 0 then return false end
    if rec.ready then return STANDING[rec.kind] end
    return STANDING[sub(rec.en, 1, 1)]
  end

  local function note_turn(rec)
    local turn = turn_of(rec.la, rec.tn)
    local stood = rec.was == 'queued:' and rec.strikes == 0
    if rec.was == 'turned:' then
      if sub(rec.en, 1, 2) ~= 't:' then turn.wait, turn.changed = math.max(0, turn.wait - 1), true end
    elseif stood and not stands(rec) then
      turn.stand, turn.changed = math.max(0, turn.stand - 1), true
    elseif stands(rec) and not stood then
      -- What has waited elsewhere goes behind as well, unless a gate has let it in, or it only has to be buried.
      local passes = (rec.hg or '') ~= '' or rec.unpark or (rec.bu or '') ~= ''
      if passes then turn.stand, turn.changed = turn.stand + 1, true
      elseif not admit(turn, turn_most) then
        turn.late = turn.late or {}
        turn.late[#turn.late + 1] = { rec = rec, kind = rec.kind }
        rec.kind = 't'
      end
    end
  end

  local function move_in(turn, most)       -- as many as may stand, the first first
    local from, late = '-', turn.late or {}              -- who came behind in this call is in no stream yet
    while turn.stand < most and turn.wait > #late do
      local count = math.min(most - turn.stand, turn.wait - #late)
      local found = redis.call('XRANGE', turn.key, from, '+', 'COUNT', count)
      for _, one in ipairs(found) do
        local rec = load(one[2][2])
        if rec and not rec.bad and WAITING[rec.status] and rec.en == 't:' .. one[1] then
          ack_entry(rec)
          effect(rec)
          rec.ready, rec.kind = one[2][4], 'a'
          turn.stand, turn.wait = turn.stand + 1, turn.wait - 1
        else
          drop(turn.key, one[1])           -- no open record honours it (D2)
        end
        from = '(' .. one[1]
      end
      if #found < count then turn.wait = #late end
    end
    for i = 1, #late do
      if turn.stand >= most then break end
      late[i].rec.kind = late[i].kind
      turn.stand, turn.wait = turn.stand + 1, turn.wait - 1
    end
  end

  local function turn_all()
    for i = 1, #dirty do
      if (dirty[i].tn or '') ~= '' then note_turn(dirty[i]) end
    end
    local floods = {}                      -- last, since they stand with what the others leave
    for _, turn in pairs(turns) do
      if turn.changed and turn.wait > FLOOD then
        floods[#floods + 1] = turn
      elseif turn.changed then
        move_in(turn, turn_most)
      end
    end
    if #floods == 0 then return end
    local others = {}
    for _, turn in pairs(turns) do
      local change = calm(turn.stand, turn.wait) - calm(turn.written_stand, turn.written_wait)
      others[turn.lane] = (others[turn.lane] or calm_in[turn.lane]) + change
    end
    for _, turn in ipairs(floods) do
      move_in(turn, math.max(math.floor(turn_most / 4), turn_most - others[turn.lane]))
    end
  end

  local function write_counts(name, turn, stand, wait)
    if turn.written_stand == stand and turn.written_wait == wait then return end
    local lane = turn.lane
    local before = calm_in[lane]
    local after = before + calm(stand, wait) - calm(turn.written_stand, turn.written_wait)
    local counts, left = stand + wait > 0 and format('%d %d', stand, wait), after > 0 and format('%d', after)
    if counts and left then
      redis.call('HSET', TURNSTILE, name, counts, lane, left)
    elseif counts then
      redis.call('HSET', TURNSTILE, name, counts)
      if before > 0 then redis.call('HDEL', TURNSTILE, lane) end
    elseif left then
      redis.call('HSET', TURNSTILE, lane, left)
      redis.call('HDEL', TURNSTILE, name)
    else
      redis.call('HDEL', TURNSTILE, name, lane)
    end
    turn.written_stand, turn.written_wait, calm_in[lane] = stand, wait, after
  end

  -- Too many for a moment, never too few: who waits beyond the count would not be looked for.
  local function write_turns()
    for name, turn in pairs(turns) do
      write_counts(name, turn, math.max(turn.stand, turn.written_stand), math.max(turn.wait, turn.written_wait))
    end
  end

  local function clean_turns()             -- after the last entry was removed: an empty stream would stay
    for name, turn in pairs(turns) do
      write_counts(name, turn, turn.stand, turn.wait)
      if turn.changed and turn.wait == 0 and redis.call('XLEN', turn.key) == 0 then redis.call('DEL', turn.key) end
    end
  end

  local function recount(lane, tenant)     -- for `repair`: nobody stands in a lane whose streams are empty
    for _, kind in ipairs({ 'a', 'r' }) do
      local stream = LANE .. lane .. SUFFIX[kind]
      local pending = redis.pcall('XPENDING', stream, 'workers')
      if redis.call('XLEN', stream) > (pending.err and 0 or pending[1]) then return end
    end
    local turn = turn_of(lane, tenant)
    turn.stand, turn.wait, turn.changed = 0, redis.call('XLEN', turn.key), true
  end
  turnstile = { of = turn_of, admit = admit, turn = turn_all, recount = recount, write = write_turns,
    clean = clean_turns }
  return turnstile
end
