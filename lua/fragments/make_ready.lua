-- make_ready: a waiting job goes to its lane's ready stream, or to quarantine if it has strikes (D22).
-- park: a waiting job goes to the schedule until `due`, its envelope to the body (D8).
local function make_ready(rec, env)
  touch(rec)
  effect(rec)
  rec.ready = env
  rec.kind = rec.strikes > 0 and 'q' or 'r'
end

local function park(rec, env, due)
  touch(rec)
  effect(rec)
  rec.env = env
  rec.due = due
  put(rec, 'du', format('%d', due))
end
