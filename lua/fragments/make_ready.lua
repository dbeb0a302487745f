-- make_ready: a waiting job goes to its lane's ready stream; to quarantine if it has strikes (D22) and is not
-- only to be looked at (D14); to the lane's backlog if it is meant for that and was never started.
-- park: a waiting job goes to the schedule until `due`, its envelope to the body (D8).
local function make_ready(rec, env)
  touch(rec)
  effect(rec)
  rec.ready = env
  rec.kind = rec.strikes > 0 and 'q' or rec.bl and rec.bl ~= '' and rec.starts == 0 and 'b' or 'r'
  if (rec.bu or '') ~= '' then rec.kind = 'r' end
end

local function park(rec, env, due)
  touch(rec)
  effect(rec)
  rec.env = env
  rec.due = due
  put(rec, 'du', format('%d', due))
end
