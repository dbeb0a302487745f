-- gates: what a job must pass to be claimed, and who waits for it (docs/decisions/0015).
--
-- A job's gates stand in its record, `ga=number word word ...`, in the order in which they are passed; a
-- word is `name`, `name|figures` or `name|figures|limit`. Pauses of its task and its tenant follow from the
-- record. Nothing here is made before the first job with a gate, so that others pay nothing.
-- Needs, where it is included: tag, now, the records, make_ready; `enqueue` needs nothing but `arrive` and
-- `write`, and has no records. Leaves `open_gates`, see the end.
local function open_gates()
  if gates then return gates end
-- include: fragments/gate_state.lua
-- include: fragments/buckets.lua
-- include: fragments/waiters.lua
-- include: fragments/grants.lua
-- include: fragments/openings.lua
-- include: fragments/passing.lua
-- include: fragments/gate_timers.lua
-- include: fragments/gate_writes.lua
  gates = { arrive = arrive, pass = pass, free = free, leave = leave, line_up = line_up, sort_out = sort_out,
    grant = grant_all, wake = wake, look_after = look_after, paused = paused, set_pause = set_pause, lift = lift,
    share_of = share_of, lets_in = lets_in, breakers = open_breakers, timers = timers, write = write_gates, clean = clean_gates,
    settings = open_settings, at = gate_of, tokens_left = tokens_left, take_token = take_token, opens_at = opens_at }
  return gates
end
