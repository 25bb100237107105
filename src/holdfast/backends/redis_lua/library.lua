-- What all but the quick scripts share: a name as one script sees it. Mirrors `memory_store`; read that one first.
--
-- KEYS  1 held: who holds   2 line: sorted set of waiters by place   3 waits: hash of waiters
--       4 kept: hash of waiters that it is reserved for   5 eyes: hash of observers   6 changes: sorted set by number
-- `held` is one string: the last number given out in 16 digits, then "-" if the name is free, which makes the rest void,
-- "+" if somebody waits or watches, else "=", and a line for each
--   claim base ttl fence acquired mode limit holder metadata      that holds, and ends at base + ttl
--   ~claim ...                                                    that was released and lingers
--   !claim until                                                  that was given up before it arrived
-- A waiter is "alive place mode limit address holder", a reservation "until", an observer "alive address". Times are
-- microseconds, a limit of 0 is none. Numbers are written in full: what fits into 53 bits is exact here.

local holds, ids, gone, exclusive, shared = {}, {}, {}, 0, 0  -- who is inside, in order, and who will not come
local number, crowded, observed, changed = 0, false, false, false

local function text(number) return string.format('%.0f', number) end

local function take_room(mode, amount)
  if mode == 'x' then exclusive = exclusive + amount else shared = shared + amount end
end

local function read_state()
  local state = redis.call('GET', KEYS[1])
  if not state then return end
  number = tonumber(string.sub(state, 1, 16))
  local sign = string.sub(state, 17, 17)
  if sign == '-' then return end
  crowded = sign == '+'
  for line in string.gmatch(string.sub(state, 18), '[^\n]+') do
    local ended, id, base, ttl, fence, acquired, mode, limit, holder, metadata =
      string.match(line, '^(~?)(%S+) (%d+) (%d+) (%d+) (%d+) (%a) (%d+) (%S*) (.*)$')
    if id then
      holds[id] = { base = tonumber(base), ttl = tonumber(ttl), fence = tonumber(fence), acquired = acquired,
        ended = ended == '~', mode = mode, limit = limit, holder = holder, metadata = metadata, ends = base + ttl }
      ids[#ids + 1] = id
      take_room(mode, 1)
    else
      local lost, until_ = string.match(line, '^!(%S+) (%d+)$')
      if tonumber(until_) > now then gone[lost] = tonumber(until_) end
    end
  end
end

-- Those inside, the oldest first.
local function inside()
  local place = 0
  return function()
    repeat place = place + 1 until not ids[place] or holds[ids[place]]
    return ids[place], holds[ids[place]]
  end
end

-- Every script that changes anything ends with this. The last number given out is known for long after the rest is
-- forgotten, since the key outlives whoever holds by REMEMBER.
local function save()
  if not changed then return end
  if crowded then crowded = redis.call('EXISTS', KEYS[2], KEYS[4], KEYS[5]) > 0 end
  local lines, longest = {}, 0
  for id, hold in inside() do
    lines[#lines + 1] = string.format('%s %.0f %.0f %.0f %s %s %s %s %s', hold.ended and '~' .. id or id, hold.base,
      hold.ttl, hold.fence, hold.acquired, hold.mode, hold.limit, hold.holder, hold.metadata)
    longest = math.max(longest, hold.base + hold.ttl - now)
  end
  for id, until_ in pairs(gone) do lines[#lines + 1] = '!' .. id .. ' ' .. text(until_) end
  local sign = crowded and '+' or #lines == 0 and '-' or '='
  local state = string.format('%016.0f', number) .. sign .. table.concat(lines, '\n')
  redis.call('SET', KEYS[1], state, 'PX', math.ceil(longest / 1000) + REMEMBER_MS)
end

local function count_number()
  number = math.max(number + 1, wall)
  changed = true
  return number
end

local function read_waiter(id)
  local record = redis.call('HGET', KEYS[3], id)
  if not record then return nil end
  local alive, place, mode, limit, address, holder = string.match(record, '^(%d+) (%d+) (%a) (%d+) (%S*) (%S*)$')
  return { alive = tonumber(alive), place = tonumber(place), mode = mode, limit = limit, address = address,
    holder = holder }
end

local function drop_waiter(id)
  redis.call('ZREM', KEYS[2], id)
  redis.call('HDEL', KEYS[3], id)
  redis.call('HDEL', KEYS[4], id)
  changed = true  -- it may have been the last
end

local function tell(fence, holder)
  if not observed then return end
  local number = count_number()
  redis.call('ZADD', KEYS[6], number, text(number) .. ' ' .. text(fence) .. ' ' .. (holder and ('+' .. holder) or '-'))
  redis.call('ZREMRANGEBYRANK', KEYS[6], 0, -KEPT_CHANGES - 1)
  redis.call('PEXPIRE', KEYS[6], LINGER_MS)
  local eyes = redis.call('HGETALL', KEYS[5])
  for i = 1, #eyes, 2 do
    local alive, address = string.match(eyes[i + 1], '^(%d+) (%S*)$')
    if tonumber(alive) > now then
      redis.call('PUBLISH', address, eyes[i])
    else
      redis.call('HDEL', KEYS[5], eyes[i])
    end
  end
end

local function end_hold(id)
  local hold = holds[id]
  holds[id] = nil
  take_room(hold.mode, -1)
  changed = true
  tell(hold.fence, nil)
end

local function fits(mode, limit)
  if exclusive > 0 then return false end
  if mode == 'x' then return shared == 0 end
  return limit == '0' or shared < tonumber(limit)
end

local function reserve(id, waiter)
  redis.call('ZREM', KEYS[2], id)
  redis.call('HSET', KEYS[4], id, text(now + GRACE))
  redis.call('PEXPIRE', KEYS[4], LINGER_MS)
  take_room(waiter.mode, 1)
  redis.call('PUBLISH', waiter.address, id)
end

-- The first in line that is alive, and its id; whoever is not is forgotten on the way.
local function first_in_line()
  while true do
    local id = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
    if not id then return nil end
    local waiter = read_waiter(id)
    if waiter and waiter.alive > now then return id, waiter end
    drop_waiter(id)
  end
end

local function find_heir(heir)
  for _, id in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
    local waiter = read_waiter(id)
    if waiter and waiter.alive > now and waiter.holder == heir then return id, waiter end
  end
end

local function hand_over(heir)
  if not crowded then return end
  if heir and heir ~= '' then
    local id, waiter = find_heir(heir)
    if id and fits(waiter.mode, waiter.limit) then reserve(id, waiter) end
  end
  while true do
    local id, waiter = first_in_line()
    if not id or not fits(waiter.mode, waiter.limit) then return end
    reserve(id, waiter)
  end
end

-- Read who is inside, forget what time has ended, and hand over the room that it took.
local function look()
  read_state()
  observed = crowded and redis.call('EXISTS', KEYS[5]) == 1
  local over = {}
  for id, hold in inside() do
    if hold.ends <= now then over[#over + 1] = id end
  end
  local made_room = #over > 0
  for _, id in ipairs(over) do end_hold(id) end
  local rows = crowded and redis.call('HGETALL', KEYS[4]) or {}
  for i = 1, #rows, 2 do
    local id, waiter = rows[i], read_waiter(rows[i])
    if not waiter or waiter.alive <= now then
      drop_waiter(id)
      made_room = true
    elseif tonumber(rows[i + 1]) <= now then
      redis.call('HDEL', KEYS[4], id)  -- it was woken and did not come: passed over until it asks again
      made_room = true
    else
      take_room(waiter.mode, 1)
    end
  end
  if made_room then hand_over() end
end

local function soonest_end()
  local soonest
  for _, hold in inside() do
    if not soonest or hold.ends < soonest then soonest = hold.ends end
  end
  return soonest
end
