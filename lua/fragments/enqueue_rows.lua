-- enqueue_rows: the decisions of a whole call, row by row; nothing is written yet. Leaves `on` and `replies`, or has
-- returned the one word that refuses the call. See enqueue.lua.
local on = mirrored('declared:admission', 'throttles')
local declared, throttles = switch[1] or '', switch[2] or ''     -- '' by an app whose lanes have no bounds
if declared ~= '' or throttles ~= '' then
-- include: fragments/admission.lua
  door = open_door(declared, throttles)
end
if switch.restoring or (marker ~= '' and switch.marker ~= marker and switch.marker ~= 'off') then
  return 'RESTORING'
end
log_is_full = log_at_bound()
local replies = {}
local there = find_records(3, 5)
for i = 3, #ARGV, 5 do
  local id = ARGV[i]
  local reply = decide(id, ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], there[(i + 2) / 5])
  seen_ids[id] = seen_ids[id] or reply
  replies[#replies + 1] = reply
end
