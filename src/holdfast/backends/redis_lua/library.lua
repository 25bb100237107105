-- What the slow paths share: a name as one script sees it. Mirrors `memory_store`; read that one first.
--
-- KEYS  1 held: hash of claims that hold; "f" is the last number given out, "q" that somebody waits or watches, "!claim"
--       one that was given up before it arrived
--       2 line: sorted set of waiters by place   3 waits: hash of waiters   4 kept: hash of waiters that it is
--       reserved for   5 eyes: hash of observers   6 changes: sorted set of changes by number
-- A claim that holds is "base ttl fence acquired ended mode limit holder-length holder metadata" and ends at base + ttl,
-- a waiter is "alive place mode limit address holder", a reservation "until", an observer "alive address". Times are
-- microseconds, a limit of 0 is none. Numbers are written in full: what fits into 53 bits is exact here.

local holds, exclusive, shared = {}, 0, 0  -- who is inside; filled by `look`
local observed = false

local function text(number) return string.format('%.0f', number) end

local function read_hold(record)
  local base, ttl, fence, acquired, ended, mode, limit, size, rest =
    string.match(record, '^(%d+) (%d+) (%d+) (%d+) (%d) (%a) (%d+) (%d+) (.*)$')
  return { base = tonumber(base), ttl = tonumber(ttl), ends = base + ttl, fence = tonumber(fence), acquired = acquired,
    ended = ended == '1', mode = mode, limit = limit, holder = string.sub(rest, 1, tonumber(size)),
    tail = limit .. ' ' .. size .. ' ' .. rest, metadata = string.sub(rest, tonumber(size) + 2) }
end

local function write_hold(id, hold)
  hold.ends = hold.base + hold.ttl
  holds[id] = hold
  redis.call('HSET', KEYS[1], id, string.format('%.0f %.0f %.0f %s %s %s %s', hold.base, hold.ttl, hold.fence,
    hold.acquired, hold.ended and '1' or '0', hold.mode, hold.tail))
end

local function read_waiter(id)
  local record = redis.call('HGET', KEYS[3], id)
  if not record then return nil end
  local alive, place, mode, limit, address, holder = string.match(record, '^(%d+) (%d+) (%a) (%d+) (%S*) (.*)$')
  return { alive = tonumber(alive), place = tonumber(place), mode = mode, limit = limit, address = address,
    holder = holder }
end

local function drop_waiter(id)
  redis.call('ZREM', KEYS[2], id)
  redis.call('HDEL', KEYS[3], id)
  redis.call('HDEL', KEYS[4], id)
end

-- The last number given out must be known for long after everything else is forgotten. What grants quickly counts on
-- this being done on each day that a number is given out, and on REMEMBER_MS being a day more than is promised.
local function remember()
  local longest = 0
  for _, hold in pairs(holds) do longest = math.max(longest, hold.ends - now) end
  redis.call('PEXPIRE', KEYS[1], math.ceil(longest / 1000) + REMEMBER_MS)
end

local function count_number()
  local number = math.max(tonumber(redis.call('HGET', KEYS[1], 'f') or 0) + 1, wall)
  redis.call('HSET', KEYS[1], 'f', text(number))
  remember()
  return number
end

-- Nobody waits or watches any more: from now on the quick ways are open.
local function tidy()
  if redis.call('EXISTS', KEYS[2], KEYS[4], KEYS[5]) == 0 then redis.call('HDEL', KEYS[1], 'q') end
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

local function take_room(mode, amount)
  if mode == 'x' then exclusive = exclusive + amount else shared = shared + amount end
end

local function end_hold(id)
  local hold = holds[id]
  redis.call('HDEL', KEYS[1], id)
  holds[id] = nil
  take_room(hold.mode, -1)
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
local function look(rows)
  observed = redis.call('EXISTS', KEYS[5]) == 1
  local over = {}
  rows = rows or redis.call('HGETALL', KEYS[1])
  for i = 1, #rows, 2 do
    if string.byte(rows[i]) == 33 then  -- "!": a claim that was given up before it arrived
      if tonumber(rows[i + 1]) <= now then redis.call('HDEL', KEYS[1], rows[i]) end
    elseif #rows[i] > 1 then
      local hold = read_hold(rows[i + 1])
      holds[rows[i]] = hold
      take_room(hold.mode, 1)
      if hold.ends <= now then over[#over + 1] = rows[i] end
    end
  end
  local made_room = #over > 0
  for _, id in ipairs(over) do end_hold(id) end
  rows = redis.call('HGETALL', KEYS[4])
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
  for _, hold in pairs(holds) do
    if not soonest or hold.ends < soonest then soonest = hold.ends end
  end
  return soonest
end
