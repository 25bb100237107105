-- ARGV  1 now or ""   2 claim   3 ttl   4 mode   5 limit   6 "limit holder-length holder metadata"   7 holder   8 enqueue   9 address
local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
local now = ARGV[1] == '' and wall or tonumber(ARGV[1])
local id, ttl, mode, limit = ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]

if redis.call('HLEN', KEYS[1]) <= 1 and redis.call('EXISTS', KEYS[2], KEYS[4], KEYS[5]) == 0 then  -- nobody is here
  local fence = math.max(tonumber(redis.call('HGET', KEYS[1], 'f') or 0) + 1, wall)
  local record = string.format('%.0f %.0f %.0f 0 %s %s', now + ttl, fence, wall, mode, ARGV[6])
  redis.call('HSET', KEYS[1], 'f', string.format('%.0f', fence), id, record)
  redis.call('PEXPIRE', KEYS[1], math.ceil(ttl / 1000) + REMEMBER)
  return { 1, fence, wall }
end

--@library

local function grant()
  drop_waiter(id)
  local fence = count_number()
  local hold = { ends = now + ttl, fence = fence, acquired = text(wall), ended = false, mode = mode, tail = ARGV[6] }
  write_hold(id, hold)
  keep_for(hold.ends)
  tell(fence, ARGV[7])
  return { 1, fence, wall }
end

local function grant_again(hold)
  hold.ends = math.max(hold.ends, now + ttl)
  local shares = mode == 's' and hold.mode == 'x'  -- it no longer wants it for itself
  if shares then
    hold.mode, hold.tail = 's', ARGV[6]
    exclusive, shared = exclusive - 1, shared + 1
  end
  write_hold(id, hold)
  keep_for(hold.ends)
  if shares then hand_over() end
  return { 1, hold.fence, tonumber(hold.acquired) }
end

-- All who share a name, or wait to, have one limit, so it is enough to look at one of them.
local function other_limit()
  for other, hold in pairs(holds) do
    if hold.mode == 's' and other ~= id then return hold.limit end
  end
  local waiting = redis.call('HGETALL', KEYS[3])
  for i = 1, #waiting, 2 do
    if waiting[i] ~= id then
      local waiter = read_waiter(waiting[i])
      if waiter.mode == 's' and waiter.alive > now then return waiter.limit end
    end
  end
end

look()
local mine = holds[id]
if mine and not mine.ended then return grant_again(mine) end
if redis.call('HEXISTS', KEYS[1], '!' .. id) == 1 then return { 0, 0, -1, '', 0 } end
local own = read_waiter(id)
if own and own.alive <= now then
  drop_waiter(id)  -- it was silent for so long that its place is void
  own = nil
end
if mode == 's' and not own then
  local other = other_limit()
  if other and other ~= limit then return { -1, tonumber(other) } end
end
if own and redis.call('HEXISTS', KEYS[4], id) == 1 then
  take_room(mode, -1)
  return grant()
end
local first, first_waiter = first_in_line()
local unserved = first and first ~= id and (not own or first_waiter.place < own.place)
if not unserved and fits(mode, limit) then return grant() end

if ARGV[8] == '1' then
  local place = own and own.place or count_number()
  redis.call('HSET', KEYS[3], id, text(now + PRESENCE) .. ' ' .. text(place) .. ' ' .. mode .. ' ' .. limit .. ' '
    .. ARGV[9] .. ' ' .. ARGV[7])
  redis.call('ZADD', KEYS[2], place, id)
  redis.call('PEXPIRE', KEYS[2], LINGER_MS)
  redis.call('PEXPIRE', KEYS[3], LINGER_MS)
end
local ahead = (redis.call('ZRANK', KEYS[2], id) or redis.call('ZCARD', KEYS[2]))
local kept = redis.call('HGETALL', KEYS[4])
local soonest = soonest_end()
for i = 1, #kept, 2 do
  local waiter = read_waiter(kept[i])
  if not own or waiter.place < own.place then ahead = ahead + 1 end
  if not soonest or tonumber(kept[i + 1]) < soonest then soonest = tonumber(kept[i + 1]) end
end
local holder = ''
for _, hold in pairs(holds) do holder = hold.holder end
local watches = soonest and (not unserved or next(holds) == nil)  -- only the first in line watches for when time makes room
return { 0, ahead, watches and math.max(0, soonest - now) or -1, holder, next(holds) and 1 or 0 }
