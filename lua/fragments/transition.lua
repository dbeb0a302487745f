-- transition: moves a record along one legal edge and writes the line of the log.
--
-- The table is TRANSITIONS of core/states.py; a test keeps them equal. An illegal edge raises before
-- anything is written. The record's numbers are set first, then the edge is taken, so that one state token
-- serves the record and the log. A line of the log: id from token reason [name=value ...]; or `id = fence [offset]`
-- where all else is as the line before says, as with most jobs that a call claims or ends.
local EDGES = {
  queued = { claimed = true, failed_terminal = true },
  retry_scheduled = { claimed = true, failed_terminal = true },
  claimed = { processing = true, queued = true, retry_scheduled = true, failed_terminal = true },
  processing = { succeeded = true, queued = true, retry_scheduled = true, failed_terminal = true },
  failed_terminal = { queued = true },
  succeeded = {},
}

local function step(rec, to)
  local from = rec.status
  if not EDGES[from][to] then
    error('illegal edge ' .. from .. ' -> ' .. to .. ' of job ' .. rec.id)
  end
  rec.version = rec.version + 1
  rec.status = to
  return from
end

local said = {}                          -- what the last line without further facts says

local function says(from, reason)        -- whether the last line is of the same move
  return said.line == #lines and said.reason == reason and said.from == from
end

local function again(from, rec, reason)  -- whether it says the same of this job, but for fence and moment
  return says(from, reason) and said.to == rec.status
    and said.version == rec.version and said.attempt == rec.attempt and said.starts == rec.starts
    and said.strikes == rec.strikes and said.epoch == rec.epoch
end

local function say(from, rec, reason, head)
  said.line, said.from, said.to, said.reason, said.head = #lines, from, rec.status, reason, head
  said.version, said.attempt, said.starts = rec.version, rec.attempt, rec.starts
  said.strikes, said.epoch = rec.strikes, rec.epoch
end

-- `ended`: the fence of the claim that ends here, which the token has no more. `ago`: how many ms before this
-- call the handler began.
local function transition(rec, to, reason, facts, ended, ago)
  local from, mark = step(rec, to), ago and ' at='
  touch(rec)
  if rec.begun then                      -- the line stands for claimed -> processing as well (D20)
    from, mark, ago = 'claimed', ' started=', rec.begun
    if rec.tried ~= rec.attempt then facts = (facts or '') .. ' tried=' .. text_of[rec.tried] end
    rec.begun = nil
  end
  local line, head
  if not facts and again(from, rec, reason) then
    rec.token = said.head .. rec.fence .. ' ' .. rec.lease
    line = rec.id .. ' = ' .. (ended or rec.fence)
    if mark then line = line .. ' ' .. text_of[-ago] end
    said.line = said.line + 1
  else
    head = head_of(rec)
    rec.token = head .. rec.fence .. ' ' .. rec.lease
    line = rec.id .. ' ' .. from .. ' ' .. rec.token .. ' ' .. reason .. (facts or '')
    if ended then line = line .. ' fence=' .. ended end
    if mark then line = line .. mark .. text_of[-ago] end
  end
  lines[#lines + 1] = line
  if head and not facts then say(from, rec, reason, head) end
end
