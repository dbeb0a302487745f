-- cache/keep: a value that was loaded, unless it was made stale meanwhile or a newer one is there. Without a value
-- another may load it.
--
-- Replies  OK | STALE
local tag     = KEYS[1]                  -- hash tag of the shard
local name    = ARGV[1]                  -- of the value
local version = ARGV[2]                  -- of what was loaded
local token   = ARGV[3]                  -- who was to load it
local ttl_ms  = ARGV[4]                  -- how long it may be believed
local entry   = ARGV[5]                  -- begins with its version and a blank; '' for none
local loading, key = tag .. ':loading:' .. name, tag .. ':cache:' .. name
if redis.call('GET', loading) ~= token then return 'STALE' end
local kept = string.match(redis.call('GET', key) or '', '^(%d+) ')
if entry == '' or kept and tonumber(kept) > tonumber(version) then
  redis.call('DEL', loading)
  return 'STALE'
end
redis.call('SET', key, entry, 'PX', ttl_ms)
redis.call('DEL', loading)
return 'OK'
