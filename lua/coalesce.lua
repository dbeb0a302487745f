-- coalesce: `enqueue`, where jobs may be merged: many events of a window become one job.
--
-- A row with a window goes into the job that has opened it, if that still waits for its end and has room. Else it is a
-- new job like any other: it opens the next window, and waits in the schedule for its end. The job that a merged
-- event went into answers for it, also for its key. The same request sent again within a minute is answered the same.
-- Replies, one per row:  as `enqueue`, or  COALESCED <job id>
local tag    = KEYS[1]                   -- hash tag of the shard
local clock  = ARGV[1]                   -- ms, or '' for Redis TIME
local marker = ARGV[2]                   -- of the mirror, as the caller knows it; '' for none
-- rows: id task lane env extra
-- as in `enqueue`. The window is seven words: mode, name, ms, limit, when, bytes, lengths. Mode `collect` takes the
-- items at the end of the envelope, of those lengths, `latest` the envelope as a whole; `limit` is how many items
-- or events a window holds, `bytes` how large its envelope may get; when is `always`, or `pressure`.
local script, actor = 'coalesce', '-'
-- include: fragments/base.lua

local function coalesce()
-- include: fragments/record.lua
-- include: fragments/transition.lua
-- include: fragments/move.lua
-- include: fragments/make_ready.lua
-- include: fragments/gates.lua
-- include: fragments/turnstile.lua
-- include: fragments/enqueue_step.lua
-- include: fragments/windows.lua
-- include: fragments/commit.lua
  windows = open_windows()
-- include: fragments/enqueue_rows.lua
  windows.seal()
  write_accepted()                       -- the growing write (R31)
  tell_parked(replies)
  windows.write()
  commit()
  windows.finish()
-- include: fragments/enqueue_replies.lua
end

return coalesce()
