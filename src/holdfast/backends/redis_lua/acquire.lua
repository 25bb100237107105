-- KEYS  see library.lua
-- ARGV  1 ttl   2 mode   3 "limit holder-length holder metadata"   4 now or ""   5 claim   6 address, "" not to wait
-- Answers "fence" or "fence acquired" if granted, { other limit }, or { ahead, microseconds until it is worth asking
-- again or -1, "holder" or false }.
local rows = redis.call('HGETALL', KEYS[1])
local time = redis.call('TIME')
local clock = time[1] .. string.sub('00000' .. time[2], -6)
local mode, id = ARGV[2], ARGV[5]

if #rows <= 2 then  -- nobody is inside, waits or watches
  local fence, base = clock, ARGV[4]
  if base == '' then base = clock end
  local last = #rows == 2 and rows[2] + 0 or 0
  if last >= clock + 0 then fence = string.format('%.0f', last + 1) end
  redis.call('HSET', KEYS[1], 'f', fence, id,
    base .. ' ' .. ARGV[1] .. ' ' .. fence .. ' ' .. clock .. ' 0 ' .. mode .. ' ' .. ARGV[3])
  local ttl = ARGV[1] + 0
  if ttl > DAY or math.floor(last / DAY) ~= math.floor(clock / DAY) then  -- once a day is enough, see `remember`
    redis.call('PEXPIRE', KEYS[1], math.ceil(ttl / 1000) + REMEMBER_MS)
  end
  return fence == clock and fence or fence .. ' ' .. clock
end

local wall = clock + 0
local now = ARGV[4] == '' and wall or tonumber(ARGV[4])

--@library

local ttl = tonumber(ARGV[1])
local limit, rest = string.match(ARGV[3], '^(%d+) (.*)$')
local size, rest = string.match(rest, '^(%d+) (.*)$')
local holder = string.sub(rest, 1, tonumber(size))

local function grant()
  drop_waiter(id)
  local fence = count_number()
  local hold = { base = now, ttl = ttl, fence = fence, acquired = clock, ended = false, mode = mode, tail = ARGV[3] }
  write_hold(id, hold)
  remember()
  tell(fence, holder)
  tidy()
  return text(fence) .. ' ' .. clock
end

local function grant_again(hold)
  if hold.ends < now + ttl then hold.base, hold.ttl = now, ttl end
  local shares = mode == 's' and hold.mode == 'x'  -- it no longer wants it for itself
  if shares then
    hold.mode, hold.tail = 's', ARGV[3]
    exclusive, shared = exclusive - 1, shared + 1
  end
  write_hold(id, hold)
  remember()
  if shares then hand_over() end
  return text(hold.fence) .. ' ' .. hold.acquired
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

look(rows)
local mine = holds[id]
if mine and not mine.ended then return grant_again(mine) end
if redis.call('HEXISTS', KEYS[1], '!' .. id) == 1 then return { 0, -1, false } end
local own = read_waiter(id)
if own and own.alive <= now then
  drop_waiter(id)  -- it was silent for so long that its place is void
  own = nil
end
if mode == 's' and not own then
  local other = other_limit()
  if other and other ~= limit then return { tonumber(other) } end
end
if own and redis.call('HEXISTS', KEYS[4], id) == 1 then
  take_room(mode, -1)
  return grant()
end
local first, first_waiter = first_in_line()
local unserved = first and first ~= id and (not own or first_waiter.place < own.place)
if not unserved and fits(mode, limit) then return grant() end

if ARGV[6] ~= '' then
  local place = own and own.place or count_number()
  redis.call('HSET', KEYS[3], id, text(now + PRESENCE) .. ' ' .. text(place) .. ' ' .. mode .. ' ' .. limit .. ' '
    .. ARGV[6] .. ' ' .. holder)
  redis.call('ZADD', KEYS[2], place, id)
  redis.call('PEXPIRE', KEYS[2], LINGER_MS)
  redis.call('PEXPIRE', KEYS[3], LINGER_MS)
  redis.call('HSET', KEYS[1], 'q', '1')
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
for _, hold in pairs(holds) do who = hold.holder end
local watches = soonest and (not unserved or not who)  -- only the first in line watches for when time makes room
return { ahead, watches and math.max(0, soonest - now) or -1, who }
