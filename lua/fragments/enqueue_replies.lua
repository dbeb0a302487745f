-- enqueue_replies: what an enqueue call answers: a reply for each row, and the marker that stands if the caller knows
-- another or none. The last lines of a function that has `replies`; they make no function of their own.
local stands = switch.on and switch.marker or ''
if stands ~= marker then replies[#replies + 1] = 'MARKER ' .. stands end
return replies
