-- dlq/trim: the oldest dead letters go, once they are too old or too many; each leaves a line in the log.
--
-- While a mirror is on, only those whose end it has committed: all that comes before the log's first entry.
-- Replies  { letters removed, of them for their age, 1 if more are to go now }
local tag          = KEYS[1]             -- hash tag of the shard
local clock        = ARGV[1]             -- ms, or '' for Redis TIME
local worker       = ARGV[2]             -- who asks, for the log
local retention_ms = ARGV[3]             -- how long a finished record stays
local max_age_ms   = ARGV[4]             -- letters older than this go
local max_count    = ARGV[5]             -- letters that stay at most
local limit        = ARGV[6]             -- letters that this call removes at most
local script, actor = 'dlq/trim', worker
-- include: fragments/base.lua
-- include: fragments/record.lua
-- include: fragments/turnstile.lua
-- include: fragments/commit.lua
local function committed_before()        -- ms; every end before that is in Postgres, or needs not be
  if not mirrored() then return now + 1 end
  local first = redis.call('XRANGE', EVENTS, '-', '+', 'COUNT', 1)[1]
  if not first then return now + 1 end
  for i = 1, #first[2], 2 do
    if first[2][i] == 't' then return tonumber(first[2][i + 1]) end
  end
  return 0
end

local too_many = redis.call('XLEN', DLQ) - tonumber(max_count)
local letters, aged, more = {}, 0, 0
local bound = committed_before()
for _, entry in ipairs(redis.call('XRANGE', DLQ, '-', '+', 'COUNT', tonumber(limit) + 1)) do
  local named = {}
  for i = 1, #entry[2], 2 do named[entry[2][i]] = entry[2][i + 1] end
  local dead_at = tonumber(named.dead_at or '') or 0
  local old = now - dead_at > tonumber(max_age_ms)
  if dead_at >= bound or not (old or #letters < too_many) then break end
  if #letters == tonumber(limit) then
    more = 1
    break
  end
  letters[#letters + 1] = entry[1]
  bump('trimmed:' .. (named.lane or '') .. ':' .. (named.task or ''), 1)
  if old then aged = aged + 1 end
  audit[#audit + 1] = (named.id or '-') .. ' ' .. (named.epoch or '0') .. ' trimmed'
  local rec = load(named.id or '-')
  if rec and not rec.bad and rec.dq == entry[1] then put(rec, 'dq', '') end
end
if #letters > 0 then
  bump('dead_trimmed', #letters)
  commit()
  redis.call('XDEL', DLQ, unpack(letters))
end
return { #letters, aged, more }
