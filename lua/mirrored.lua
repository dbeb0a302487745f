-- mirrored: takes away the entries of the log that the mirror has committed, exactly these (D18).
--
-- Replies  number of entries that were there
local tag = KEYS[1]                      -- hash tag of the shard
-- rows: entry size
-- `size` is what the entry counts for in the log's bound.
local EVENTS, STATS = tag .. ':events', tag .. ':stats'
local removed, freed = 0, 0
for i = 1, #ARGV, 2 do
  if redis.call('XDEL', EVENTS, ARGV[i]) == 1 then
    removed = removed + 1
    freed = freed + ARGV[i + 1]
  end
end
if redis.call('XLEN', EVENTS) == 0 then  -- whatever was counted wrong ends here
  redis.call('HDEL', STATS, 'log_bytes')
elseif freed > 0 then
  redis.call('HINCRBY', STATS, 'log_bytes', string.format('%d', -freed))
end
return removed
