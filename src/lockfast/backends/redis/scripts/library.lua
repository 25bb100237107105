-- What all but the quick scripts share: a name as one script sees it. Mirrors `store`; read that one first.
-- A script has said before whether it `frees`: then it goes through in a full memory, too.
--
-- KEYS  1 held: who holds   2 line: sorted set of waiters by place   3 waits: hash of waiters
--       4 eyes: hash of observers   5 changes: sorted set by number
-- `held` is one string: the last number given out in 16 digits, a sign, and a line for each
--   claim base fence acquired ttl mode limit holder metadata      that holds, and ends at base + ttl
--   ~claim ...                                                    that was released and lingers
--   ?claim until alive place mode                                 that waits, and for which it is reserved
--   !claim until                                                  that was given up before it arrived
-- The sign is "-" if the name is free, which makes the rest void, "+" if somebody may wait, "*" if somebody may watch too,
-- else "=". A waiter is "alive place mode limit address holder", an observer "alive address". Times are microseconds, a
-- limit of 0 is none. Numbers are written in full: what fits into 53 bits is exact here.
-- What others have put there may be anything. A line that cannot be read, and a second hold of one claim, stay as they are,
-- and no claim is granted beside them;
-- if not even the number and the sign can be read, that is true of all of it. A waiter or an observer that cannot be read
-- is forgotten: it asks again.
-- Each call of the server costs about as much as all else that a script does, so there are few.

local holds, ids, kept, gone, exclusive, shared = {}, {}, {}, {}, 0, 0
local spoilt, damage = {}, nil  -- lines that cannot be read; what is wrong, and "all" of it if nothing can be read
local number, crowded, observed, changed, nobody_in_line = 0, false, false, false, false

local function text(number) return string.format('%d', number) end

-- A full memory refuses what needs some, but not to a script that has written already. Only those that free may use that.
local function write(...)
  local done = redis.pcall(...)
  if type(done) ~= 'table' or not done.err then return end
  if not frees then error(done.err) end
  redis.call('PEXPIRE', KEYS[1], REMEMBER_MS)
  redis.call(...)
end

local function take_room(mode, amount)
  if mode == 'x' then exclusive = exclusive + amount else shared = shared + amount end
end

-- Whether all of these were found, and are numbers that can be written again.
local function are_numbers(...)
  for i = 1, select('#', ...) do
    local digits = select(i, ...)
    if not digits or #digits > 16 or tonumber(digits) > LARGEST then return false end
  end
  return true
end

local function read_line(line)
  local sign = string.sub(line, 1, 1)
  if sign == '?' then
    local id, until_, alive, place, mode = string.match(line, '^?(%S+) (%d+) (%d+) (%d+) ([xs])$')
    if not are_numbers(until_, alive, place) then return false end
    if kept[id] then return true end  -- the same again: no claim holds by it
    kept[id] = { until_ = tonumber(until_), alive = tonumber(alive), place = tonumber(place), mode = mode }
    take_room(mode, 1)
  elseif sign == '!' then
    local id, until_ = string.match(line, '^!(%S+) (%d+)$')
    if not are_numbers(until_) then return false end
    if tonumber(until_) > now then gone[id] = tonumber(until_) end
  else
    local ended, id, base, fence, acquired, ttl, mode, limit, holder, metadata =
      string.match(line, '^(~?)(%S+) (%d+) (%d+) (%d+) (%d+) ([xs]) (%d+) (%S*) (.*)$')
    if not are_numbers(base, fence, acquired, ttl, limit) or tonumber(ttl) > LONGEST or holds[id] then return false end
    holds[id] = { base = tonumber(base), ttl = tonumber(ttl), fence = tonumber(fence), acquired = acquired,
      ended = ended == '~', mode = mode, limit = limit, holder = holder, metadata = metadata, ends = base + ttl }
    ids[#ids + 1] = id
    take_room(mode, 1)
  end
  return true
end

local function read_state()
  local state = redis.pcall('GET', KEYS[1])
  if not state then return end
  if type(state) == 'table' then
    if not string.find(state.err, 'WRONGTYPE', 1, true) then redis.call('GET', KEYS[1]) end  -- as it would have failed
    damage, exclusive = 'all', 1
    return
  end
  local digits, sign = string.match(state, '^(%d+)([-+*=])')
  if not sign or #digits ~= 16 or not are_numbers(digits) then
    damage, exclusive = 'all', 1
    return
  end
  number = tonumber(digits)
  if sign == '-' then return end
  crowded = sign == '+' or sign == '*'
  observed = sign == '*' and redis.call('EXISTS', KEYS[4]) == 1
  for line in string.gmatch(string.sub(state, 18), '[^\n]+') do
    if not read_line(line) then
      spoilt[#spoilt + 1] = line
      damage = 'some'
      take_room('x', 1)
    end
  end
end

-- Ask for what is kept of waiters, observers or changes. What is of another type is forgotten.
local function ask(command, key, ...)
  local answer = redis.pcall(command, key, ...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  if string.find(answer.err, 'WRONGTYPE', 1, true) then redis.call('DEL', key) end
  return redis.call(command, key, ...)
end

-- Those inside, the oldest first.
local function inside()
  local place = 0
  return function()
    place = place + 1
    return ids[place], holds[ids[place]]
  end
end

-- Whether anybody may wait or watch. Only asked further once the line was seen to be empty: whoever did not come when it
-- was woken stands in no line, but may come back to its place.
local function still_crowded()
  return crowded and (not nobody_in_line or next(kept) ~= nil or redis.call('EXISTS', KEYS[3], KEYS[4]) > 0)
end

-- Every script that changes anything ends with this. The last number given out is known for long after the rest is
-- forgotten, since the key outlives whoever holds by REMEMBER.
local function save()
  if not changed or damage == 'all' then return end
  crowded = still_crowded()
  local lines, longest = {}, 0
  for id, hold in inside() do
    lines[#lines + 1] = string.format('%s %d %d %s %d %s %s %s %s', hold.ended and '~' .. id or id, hold.base, hold.fence,
      hold.acquired, hold.ttl, hold.mode, hold.limit, hold.holder, hold.metadata)
    longest = math.max(longest, hold.base + hold.ttl - now)
  end
  for id, one in pairs(kept) do
    lines[#lines + 1] = string.format('?%s %d %d %d %s', id, one.until_, one.alive, one.place, one.mode)
  end
  for id, until_ in pairs(gone) do lines[#lines + 1] = '!' .. id .. ' ' .. text(until_) end
  for _, line in ipairs(spoilt) do lines[#lines + 1] = line end
  local sign = crowded and (observed and '*' or '+') or #lines == 0 and '-' or '='
  write('SET', KEYS[1], string.format('%016d', number) .. sign .. table.concat(lines, '\n'),
    'PX', math.ceil((longest + math.max(0, number - wall)) / 1000) + REMEMBER_MS)  -- longer if the clock was set back
end

local function count_number()
  number = math.max(number + 1, wall)
  changed = true
  return number
end

-- Whoever asked last after a clock that was set back since may be dead for long: it asks again if it is not.
local function is_alive(until_) return until_ > now and until_ <= now + PRESENCE end

local function read_waiter(id)
  local record = ask('HGET', KEYS[3], id)
  if not record then return nil end
  local alive, place, mode, limit, address, holder = string.match(record, '^(%d+) (%d+) ([xs]) (%d+) (%S*) (%S*)$')
  if not are_numbers(alive, place, limit) then return nil end
  return { alive = tonumber(alive), place = tonumber(place), mode = mode, limit = limit, address = address,
    holder = holder }
end

local function drop_waiter(id)
  if kept[id] then
    kept[id] = nil
  else
    ask('ZREM', KEYS[2], id)
  end
  ask('HDEL', KEYS[3], id)
  changed = true
end

local function tell(fence, holder)
  if not observed then return end
  local number = count_number()
  ask('ZCARD', KEYS[5])
  write('ZADD', KEYS[5], number, text(number) .. ' ' .. text(fence) .. ' ' .. (holder and ('+' .. holder) or '-'))
  redis.call('ZREMRANGEBYRANK', KEYS[5], 0, -KEPT_CHANGES - 1)
  redis.call('PEXPIRE', KEYS[5], LINGER_MS)
  local eyes = ask('HGETALL', KEYS[4])
  for i = 1, #eyes, 2 do
    local alive, address = string.match(eyes[i + 1], '^(%d+) (%S*)$')
    if alive and tonumber(alive) > now then
      redis.pcall('PUBLISH', address, eyes[i])
    else
      redis.call('HDEL', KEYS[4], eyes[i])
    end
  end
end

local function end_hold(id)
  local hold = holds[id]
  holds[id] = nil
  for place = #ids, 1, -1 do
    if ids[place] == id then table.remove(ids, place) end
  end
  take_room(hold.mode, -1)
  changed = true
  tell(hold.fence, nil)
end

local function fits(mode, limit)
  if exclusive > 0 then return false end
  if mode == 'x' then return shared == 0 end
  return limit == '0' or shared < tonumber(limit)
end

-- For a waiter that was taken out of the line. If nobody listens there its process is dead, or has lost its connection:
-- then it is passed over until it asks again, and the next one need not wait for it. In a cluster those who listen may
-- do so at another node, and nothing is known. Where we may not publish, it finds out by itself a little later.
local function reserve(id, waiter)
  changed = true
  local heard = redis.pcall('PUBLISH', waiter.address, id)
  if heard == 0 and not string.find(waiter.address, CLUSTERED, 1, true) then return end
  kept[id] = { until_ = now + GRACE, alive = waiter.alive, place = waiter.place, mode = waiter.mode }
  take_room(waiter.mode, 1)
end

-- The first in line that is alive, and its id; whoever is not is forgotten on the way.
local function first_in_line()
  while true do
    local id = ask('ZRANGE', KEYS[2], 0, 0)[1]
    if not id then
      nobody_in_line, changed = true, true
      return nil
    end
    local waiter = read_waiter(id)
    if waiter and is_alive(waiter.alive) then return id, waiter end
    drop_waiter(id)
  end
end

local function serve_successor(successor)
  for _, id in ipairs(ask('ZRANGE', KEYS[2], 0, -1)) do
    local waiter = read_waiter(id)
    if waiter and is_alive(waiter.alive) and waiter.holder == successor then
      if fits(waiter.mode, waiter.limit) then
        redis.call('ZREM', KEYS[2], id)
        reserve(id, waiter)
      end
      return
    end
  end
end

local function hand_over(successor)
  if not crowded then return end
  if successor and successor ~= '' then serve_successor(successor) end
  while exclusive == 0 do
    local id, waiter = first_in_line()
    if not id or not fits(waiter.mode, waiter.limit) then return end
    redis.call('ZREM', KEYS[2], id)
    reserve(id, waiter)
  end
end

-- Read who is inside, forget what time has ended, and hand over the room that it took.
local function look()
  read_state()
  local over = {}
  for id, hold in inside() do
    if hold.base > now then  -- the clock was set back: then it counts anew from here
      hold.base, hold.ends, changed = now, now + hold.ttl, true
    end
    if hold.ends <= now then over[#over + 1] = id end
  end
  local made_room = #over > 0
  for _, id in ipairs(over) do end_hold(id) end
  for id, one in pairs(kept) do
    if one.until_ > now + GRACE then one.until_, changed = now + GRACE, true end
    if one.alive <= now or one.until_ <= now then
      -- Dead, and then forgotten; or it was woken and did not come: then it is passed over until it asks again.
      if one.alive <= now then ask('HDEL', KEYS[3], id) end
      kept[id] = nil
      take_room(one.mode, -1)
      made_room, changed = true, true
    end
  end
  if made_room then hand_over() end
end
