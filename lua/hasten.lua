-- hasten: a job that waits for its time, after an error or for a delay, is due now: `promote` does the rest.
--
-- Nothing else of it changes: attempts, deadline and place among others stay as they are. A job in whose window
-- events are still collected goes with those that it has.
-- Replies, one per row:  OK | ALREADY <status> (it waits for no time, or is not open) | GONE
local tag          = KEYS[1]             -- hash tag of the shard
local clock        = ARGV[1]             -- ms, or '' for Redis TIME
local actor        = ARGV[2]             -- who asks, for the log
local retention_ms = ARGV[3]             -- how long a finished record stays
-- rows: id
local script = 'hasten'
-- include: fragments/base.lua
-- include: fragments/record.lua
-- include: fragments/transition.lua
-- include: fragments/make_ready.lua
-- include: fragments/gates.lua
-- include: fragments/turnstile.lua
-- include: fragments/commit.lua
local replies, due = {}, {}
for i = 4, #ARGV do
  local rec = load(ARGV[i])
  local reply = 'OK'
  if not rec or rec.bad then
    reply = 'GONE'
  elseif not WAITING[rec.status] or rec.en ~= '-' then
    reply = 'ALREADY ' .. rec.status
  elseif (tonumber(rec.du or '') or 0) > now then
    put(rec, 'du', now_text)
    audit[#audit + 1] = rec.id .. ' ' .. text_of[rec.epoch] .. ' hastened'
    due[#due + 1] = now_text
    due[#due + 1] = rec.id
  end
  replies[#replies + 1] = reply
end
if #due > 0 then
  commit()
  for i = 1, #due, CHUNK do              -- an even number: a time and an id each
    redis.call('ZADD', SCHEDULE, 'LT', unpack(due, i, math.min(i + CHUNK - 1, #due)))
  end
end
return replies
