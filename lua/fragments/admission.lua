-- admission: what is over its bound waits in the backlog or is refused (docs/decisions/0018).
--
-- `declared` and `set` are lines `rule name figures overflow ...`. What operators have set holds instead of what
-- is declared under the same name; figures `off` lift it.
--   depth <lane> n                  jobs that wait in the lane, at gates and behind turnstiles too
--   backlog <lane> n                jobs in its backlog
--   throttle lane:<lane> figures    enqueues as a rate; also tenant:<tenant>, and tenant:* for each tenant
-- A delayed job is not counted before its time. Nothing here is made unless somebody has said something.
local function open_door(declared, set)
  local AGAIN = 1000                       -- ms after which to ask again where nobody knows when there is room
  local rules, depths, words = {}, {}, {}

  local function read_rules(text)
    for name, figures, overflow in string.gmatch(text, '(%l+ %S+) (%S+) (%l+)[^\n]*') do
      rules[name] = figures ~= 'off' and { figures = figures, most = tonumber(figures), overflow = overflow }
    end
  end

  local function depth_of(lane)            -- with what this call has added
    local depth = depths[lane]
    if not depth then
      local found = redis.call('HMGET', STATS, 'queued:' .. lane, 'parked:' .. lane, 'turned:' .. lane, 'backlog:' .. lane)
      depth = { waits = (found[1] or 0) + (found[2] or 0) + (found[3] or 0), backlog = tonumber(found[4] or 0) }
      depths[lane] = depth
    end
    return depth
  end

  local function word_of(scope, rule)      -- a throttle is a rate that is charged here
    if not words[scope] then
      local name = 'throttle:' .. scope
      words[scope] = { name = name, in_force = rule.figures, overflow = rule.overflow, gate = open_gates().at(name),
        refused = 0 }
    end
    return words[scope]
  end

  local function throttles_of(row)
    local found, tenant = {}, row.tenant or ''
    local rule = rules['throttle lane:' .. row.lane]
    if rule then found[1] = word_of('lane:' .. row.lane, rule) end
    if tenant ~= '' then
      rule = rules['throttle tenant:' .. tenant]
      if rule == nil then rule = rules['throttle tenant:*'] end
      if rule then found[#found + 1] = word_of('tenant:' .. tenant, rule) end
    end
    return found
  end

  local function throttled(throttles)      -- the overflow of the first that has no token, and when it has one
    for _, word in ipairs(throttles) do
      if gates.tokens_left(word.gate, word) < 1 then
        word.refused = word.refused + 1    -- who is refused together comes back one by one
        local wait = gates.opens_at(word.gate, word) - now
        return word.overflow, wait + math.floor((word.refused - 1) * word.period / word.tokens)
      end
    end
    for _, word in ipairs(throttles) do gates.take_token(word.gate, word) end
  end

  local function over(rule, count) return rule and count >= rule.most end

  local function defer(row, why)           -- it has a line of its own to say from now on
    row.backlog = row.backlog or why
    if not row.plain then return end
    row.plain, row.key, row.deadline, row.tenant = nil, '', '', ''
    row.max_starts, row.gates, row.route = '', '', ''
  end

  read_rules(declared)
  read_rules(set)
  return function(row)                     -- the refusal, or nil: then `row.backlog` says whether it waits there
    local overflow, retry_ms = throttled(throttles_of(row))
    if overflow == 'reject' then return reject(row, retry_ms, 'throttled') end
    if overflow then defer(row, 'throttled') end
    if row.due then return nil end
    local depth, rule = depth_of(row.lane), rules['depth ' .. row.lane]
    if not row.backlog and over(rule, depth.waits) then
      if rule.overflow == 'reject' then return reject(row, AGAIN, 'lane_full') end
      defer(row, 'lane_full')
    end
    if not row.backlog then
      depth.waits = depth.waits + 1
    elseif over(rules['backlog ' .. row.lane], depth.backlog) then
      return reject(row, AGAIN, 'backlog_full')
    else
      depth.backlog = depth.backlog + 1
    end
    return nil
  end
end
