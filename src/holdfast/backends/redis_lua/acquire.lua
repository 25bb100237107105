-- KEYS  see library.lua
-- ARGV  1 claim   2 ttl   3 mode   4 limit   5 holder   6 metadata   7 address, "" not to wait   8 now, or nothing
-- Answers "fence acquired" if granted, with " +" if others wait or watch, { other limit }, or { ahead, microseconds until it is worth asking again or -1,
-- holder or false }.
local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
local now = tonumber(ARGV[8]) or wall
local id, ttl, mode, limit, holder = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]

--@library

local function grant()
  if crowded then drop_waiter(id) end
  local fence = count_number()
  ids[#ids + 1] = id
  holds[id] = { base = now, ttl = ttl, fence = fence, acquired = text(wall), ended = false, mode = mode, limit = limit,
    holder = holder, metadata = ARGV[6] }
  tell(fence, holder)
  save()
  return text(fence) .. ' ' .. text(wall) .. (crowded and ' +' or '')
end

local function grant_again(hold)
  if hold.ends < now + ttl then hold.base, hold.ttl = now, ttl end
  local shares = mode == 's' and hold.mode == 'x'  -- it no longer wants it for itself
  if shares then
    hold.mode, hold.limit = 's', limit
    exclusive, shared = exclusive - 1, shared + 1
    hand_over()
  end
  changed = true
  save()
  return text(hold.fence) .. ' ' .. hold.acquired .. (crowded and ' +' or '')
end

-- All who share a name, or wait to, have one limit, so it is enough to look at one of them.
local function other_limit()
  for other, hold in inside() do
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
if gone[id] then
  save()
  return { 0, -1, false }
end
local own = crowded and read_waiter(id) or nil
if own and own.alive <= now then
  drop_waiter(id)  -- it was silent for so long that its place is void
  own = nil
end
if mode == 's' and not own then
  local other = other_limit()
  if other and other ~= limit then
    save()
    return { tonumber(other) }
  end
end
if own and redis.call('HEXISTS', KEYS[4], id) == 1 then
  take_room(mode, -1)
  return grant()
end
local first, first_waiter
if crowded then first, first_waiter = first_in_line() end
local unserved = first and first ~= id and (not own or first_waiter.place < own.place)
if not unserved and fits(mode, limit) then return grant() end

if ARGV[7] ~= '' then
  local place = own and own.place or count_number()
  redis.call('HSET', KEYS[3], id, text(now + PRESENCE) .. ' ' .. text(place) .. ' ' .. mode .. ' ' .. limit .. ' '
    .. ARGV[7] .. ' ' .. holder)
  redis.call('ZADD', KEYS[2], place, id)
  redis.call('PEXPIRE', KEYS[2], LINGER_MS)
  redis.call('PEXPIRE', KEYS[3], LINGER_MS)
  if not crowded then crowded, changed = true, true end
end
local ahead = redis.call('ZRANK', KEYS[2], id) or redis.call('ZCARD', KEYS[2])
local kept = redis.call('HGETALL', KEYS[4])
local soonest = soonest_end()
for i = 1, #kept, 2 do
  local waiter = read_waiter(kept[i])
  if not own or waiter.place < own.place then ahead = ahead + 1 end
  if not soonest or tonumber(kept[i + 1]) < soonest then soonest = tonumber(kept[i + 1]) end
end
local who = false
for _, hold in inside() do who = hold.holder end
local watches = soonest and (not unserved or not who)  -- only the first in line watches for when time makes room
save()
return { ahead, watches and math.max(0, soonest - now) or -1, who }
