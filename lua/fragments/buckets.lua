-- buckets: how many tokens a rate has. Exact, in whole numbers.
--
-- `bucket:<name>` is `level at period`: a token is worth `period` units, and each ms brings `tokens` units,
-- up to `burst` tokens. So a window of w ms never holds more than burst + tokens * w / period starts. A bucket
-- that is not there is full. Time that jumps back brings nothing, time that jumps ahead a full bucket (R36).
local SPARE_MS = 60000                   -- how much longer a full bucket stays, for clocks that are put back

local function rate_of(word)
  if not word.tokens then
    local tokens, period, burst = match(figures_of(word), '^(%d+),(%d+),(%d+)$')
    if not tokens then error('the figures of ' .. word.name .. ' cannot be read: ' .. figures_of(word)) end
    word.tokens, word.period, word.burst = tonumber(tokens), tonumber(period), tonumber(burst)
  end
  return word.tokens, word.period, word.burst
end

local function fill(gate, word)          -- the level now, in units of this word's period
  local tokens, period, burst = rate_of(word)
  if gate.filled == word then return gate.level, tokens, period end
  local full = burst * period
  gate.filled = word                     -- time stands still in a script
  if not gate.level then
    local level, at, unit = match(redis.call('GET', tag .. ':bucket:' .. gate.name) or '', '^(%d+) (%d+) (%d+)$')
    gate.period = period
    if level then
      level = tonumber(level)
      if tonumber(unit) ~= period then level = math.floor(level / tonumber(unit) * period) end
      local elapsed = math.max(0, now - tonumber(at))
      gate.level = elapsed >= full / tokens and full or level + elapsed * tokens
      gate.rewrite = tonumber(at) > now  -- else it would bring nothing until that time
    else
      gate.level = full
    end
  elseif gate.period ~= period then
    gate.level, gate.period = math.floor(gate.level / gate.period * period), period
  end
  gate.level = math.min(gate.level, full)
  gate.full, gate.tokens = full, tokens
  return gate.level, tokens, period
end

local function tokens_left(gate, word)   -- whole tokens that nobody was promised
  local level, _, period = fill(gate, word)
  return math.floor(level / period) - count_of(gate)
end

local function take_token(gate, word)
  if gate.filled ~= word then fill(gate, word) end
  gate.level, gate.rewrite = gate.level - word.period, true
end

local function opens_at(gate, word)      -- when the next token is there that nobody was promised
  local level, tokens, period = fill(gate, word)
  return now + math.max(1, math.ceil((period * (count_of(gate) + 1) - level) / tokens))
end

local function write_bucket(gate)
  local full_in = math.max(1, math.ceil((gate.full - gate.level) / gate.tokens))
  redis.call('SET', tag .. ':bucket:' .. gate.name, format('%d %d %d', gate.level, now, gate.period),
    'PX', format('%d', full_in + SPARE_MS))
end
