-- settings: what operators have set, who and why; and what holds again when its time is over.
--
-- `settings` has a field `topic name` for each of them, with a line of `till by since`, a tab, the value, a tab and
-- the reason; `till` is 0 for good. Below that of one with a time stands the line of the one that holds for good, if
-- there is one. What other scripts and the workers read of it is in `policies`: `limit:<name>`, `drain`, and in
-- `throttles`, `slots` and `retries` a line for each, `topic name value by since reason`.
-- Leaves `settings`, see the end; nothing of it is made before something is set or its time is over.
local SETTINGS = tag .. ':settings'
local LISTS = { throttle = 'throttles', slots = 'slots', retries = 'retries' }
local entries, changed = {}, {}          -- 'topic name' -> its lines, or false
local fields = {}                        -- of `policies` -> what they come to, false to take one away

local function entry(key)
  if entries[key] == nil then entries[key] = redis.call('HGET', SETTINGS, key) end
  return entries[key]
end

local function read(text)                -- of its first line
  local till, by, since, value, reason = match(text, '^(%d+) (%S+) (%d+)\t([^\t\n]*)\t([^\n]*)')
  return { till = tonumber(till), value = value, more = by .. ' ' .. since .. ' ' .. reason }
end

local function lasting(text)             -- what holds for good, or nil
  return text and (match(text, '^0 [^\n]*') or match(text, '\n(.*)$'))
end

local function field(name)
  if fields[name] ~= nil then return fields[name] end
  return redis.call('HGET', POLICIES, name)
end

local function put_line(list, topic, name, one)          -- another line of this name, or none
  local texts = {}
  for line in string.gmatch(field(list) or '', '[^\n]+') do
    if match(line, '^%S+ (%S+)') ~= name then texts[#texts + 1] = line end
  end
  if one then texts[#texts + 1] = topic .. ' ' .. name .. ' ' .. one.value .. ' ' .. one.more end
  table.sort(texts)
  fields[list] = #texts > 0 and table.concat(texts, '\n')
end

local function put_entry(key, text)      -- and what follows from it; false: nothing is set any more
  local topic, name = match(key, '^(%l+) (.*)$')
  local one = text and read(text)
  if topic == 'limit' then
    fields['limit:' .. name] = one and one.value
    timers['limits:' .. match(name, '^%l+')] = now_text    -- who waits there may move
  elseif topic == 'drain' then
    fields.drain = one and one.value .. ' ' .. one.more
  else
    put_line(LISTS[topic], topic, name, one)
  end
  timers['setting:' .. key] = one and one.till > 0 and format('%d', one.till)
  entries[key], changed[key] = text, true
end

local function set(topic, name, value, by, reason)         -- '' takes it back; returns the reply, and whether it changed
  local key = topic .. ' ' .. name
  local stands = entry(key)
  if value == '' then
    if not stands then return 'NOTHING', false end
    put_entry(key, false)
    return 'OK', true
  end
  local plain, for_ms = match(value, '^(.*);for=(%d+)$')
  local till = for_ms and now + for_ms or 0
  local one = stands and read(stands)
  if one and one.till == till and one.value == (plain or value) then return 'OK', false end
  local text = format('%d', till) .. ' ' .. by .. ' ' .. now_text .. '\t' .. (plain or value) .. '\t' .. reason
  local below = for_ms and lasting(stands)
  put_entry(key, below and text .. '\n' .. below or text)
  return 'OK', true
end

local function expire(key)               -- its time has come
  local text = entry(key)
  local till = text and read(text).till or 0
  if till > now then timers['setting:' .. key] = format('%d', till) end
  if till == 0 or till > now then return end
  local below = lasting(text)
  local topic, name = match(key, '^(%l+) (.*)$')
  local verb = topic == 'limit' and not below and 'reset' or topic
  audit[#audit + 1] = '- 0 ' .. verb .. ' ' .. name .. ' ' .. (below and read(below).value or '-') .. ' its time is over'
  put_entry(key, below or false)
end

local function write()
  for key in pairs(changed) do
    if entries[key] then redis.call('HSET', SETTINGS, key, entries[key]) else redis.call('HDEL', SETTINGS, key) end
  end
  for name, value in pairs(fields) do
    local was_set = redis.call('HEXISTS', POLICIES, name) == 1
    if value then redis.call('HSET', POLICIES, name, value) else redis.call('HDEL', POLICIES, name) end
    if sub(name, 1, 6) == 'limit:' and was_set ~= (value and true or false)
      and redis.call('HINCRBY', POLICIES, 'limits', value and 1 or -1) <= 0 then
      redis.call('HDEL', POLICIES, 'limits')
    end
  end
end

settings = { entry = entry, set = set, expire = expire, write = write }
