-- cache/ask: a cached value, or the right to load it, or the news that somebody else does.
--
-- Who may load holds `loading:<name>` for a while. An invalidation takes it away, so that what was read before
-- it is not kept after it.
-- Replies  { HIT, entry } | { LOAD } | { WAIT, ms left }
local tag     = KEYS[1]                  -- hash tag of the shard
local name    = ARGV[1]                  -- of the value
local version = ARGV[2]                  -- the least that will do; '' to load in any case
local token   = ARGV[3]                  -- who asks
local hold_ms = ARGV[4]                  -- how long others leave the loading to it
local loading = tag .. ':loading:' .. name
if version ~= '' then
  local entry = redis.call('GET', tag .. ':cache:' .. name)
  local kept = string.match(entry or '', '^(%d+) ')
  if kept and tonumber(kept) >= tonumber(version) then return { 'HIT', entry } end
  local by = redis.call('GET', loading)
  if by and by ~= token then return { 'WAIT', math.max(1, redis.call('PTTL', loading)) } end
end
redis.call('SET', loading, token, 'PX', hold_ms)
return { 'LOAD' }
