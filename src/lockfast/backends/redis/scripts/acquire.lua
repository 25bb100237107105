-- KEYS  see library.lua
-- ARGV  1 ttl   2 mode   3 limit   4 holder   5 metadata   6 claim   7 address, "" not to wait   8 now, or nothing
--       for one of a quorum, with 8 "" for nothing:   9 the number that is proposed, in place of the clock
--       10 its place in line, which is the same at every server
-- Answers "fence acquired" if granted, then " =" if it was so before, and "+" if others hold, wait or watch;
-- { other limit }; { what is damaged }; or { ahead, microseconds until it is worth asking again or -1, holder or false, its claim or false }.
local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]
local now, wall, agreed_place = tonumber(ARGV[8]) or clock, tonumber(ARGV[9]) or clock, tonumber(ARGV[10])
local ttl, mode, limit, holder, id = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], ARGV[6]

if #holder + #ARGV[5] > PLAIN or string.find(holder .. ARGV[5], '\n', 1, true) then
--@limits
  local refused = excess(holder, ARGV[5])
  if refused then return redis.error_reply('ERR ' .. refused) end
end

-- The usual ways of a mutex that is in demand, with little work: one holds it or has it reserved, others wait, nobody
-- watches. Whatever is unusual in any way is left to the rest, and every hundredth too, which clears up.
local state = redis.pcall('GET', KEYS[1])
local last = type(state) == 'string' and string.sub(state, 17, 17) == '+' and tonumber(string.sub(state, 1, 16))
if mode == 'x' and last and last <= wall and not string.find(state, '\n', 18, true) then
  local next_number = string.format('%016d', math.max(last + 1, wall))
  local reserved, alive = string.match(state, '^?%S+ (%d+) (%d+)', 18)
  local whose, base, held_for, who = string.match(state, '^(%x+) (%d+) %d+ %d+ (%d+) [xs] %d+ (%S*) ', 18)
  if reserved and string.sub(state, 19, 19 + #id) == id .. ' ' then
    if tonumber(reserved) > now and tonumber(alive) > now then
      redis.pcall('HDEL', KEYS[3], id)
      local clock = string.format('%d', wall)
      redis.call('SET', KEYS[1], next_number .. '+' .. id .. string.format(' %d ', now) .. next_number .. ' ' .. clock
        .. ' ' .. ARGV[1] .. ' x 0 ' .. holder .. ' ' .. ARGV[5], 'PX', math.ceil(ttl / 1000) + REMEMBER_MS)
      return next_number .. ' ' .. clock .. ' +'
    end
  elseif ARGV[7] ~= '' and string.sub(next_number, -2) ~= '00' and ((reserved and tonumber(reserved) > now and tonumber(alive) > now)
      or (base and base + 0 <= now and held_for + 0 <= LONGEST and base + held_for > now and string.sub(state, 18, 18 + #id) ~= id .. ' ')) then
    local line = redis.pcall('ZRANGE', KEYS[2], 0, 0)
    local first = line[1]
    local waiter = first and redis.pcall('HGET', KEYS[3], first)
    local until_ = type(waiter) == 'string' and tonumber(string.match(waiter, '^%d+')) or 0
    local place = ARGV[10] or next_number
    local record = string.format('%d ', now + PRESENCE) .. place .. ' x 0 ' .. ARGV[7] .. ' ' .. holder
    if not line.err and (not first or (until_ > now and until_ <= now + PRESENCE)) and redis.pcall('HSETNX', KEYS[3], id, record) == 1 then
      redis.call('SET', KEYS[1], next_number .. string.sub(state, 17), 'KEEPTTL')
      redis.call('ZADD', KEYS[2], place, id)
      local ahead = ARGV[10] and redis.call('ZRANK', KEYS[2], id) or redis.call('ZCARD', KEYS[2]) - 1
      if ahead == 0 then  -- else those before keep these alive
        redis.call('PEXPIRE', KEYS[2], LINGER_MS)
        redis.call('PEXPIRE', KEYS[3], LINGER_MS)
      end
      local soonest = reserved and tonumber(reserved) or base + held_for
      return { reserved and ahead + 1 or ahead, soonest - now, who or false, whose or false }
    end
  end
end

local frees = false
--@library

local own  -- what is known of it, if it waits

local function grant()
  if own then drop_waiter(id) end
  local alone = exclusive + shared == 0
  local fence = count_number()
  if not holds[id] then ids[#ids + 1] = id end  -- else it was released, and lingers
  holds[id] = { base = now, ttl = ttl, fence = fence, acquired = text(wall), ended = false, mode = mode, limit = limit,
    holder = holder, metadata = ARGV[5] }
  tell(fence, holder)
  save()
  return text(fence) .. ' ' .. text(wall) .. ((crowded or not alone) and ' +' or '')
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
  return text(hold.fence) .. ' ' .. hold.acquired .. ' =' .. (crowded and '+' or '')
end

-- All who share a name, or wait to, have one limit, so it is enough to look at one of them.
local function other_limit()
  for other, hold in inside() do
    if hold.mode == 's' and other ~= id then return hold.limit end
  end
  if not crowded then return nil end
  local waiting = ask('HGETALL', KEYS[3])
  for i = 1, #waiting, 2 do
    if waiting[i] ~= id then
      local waiter = read_waiter(waiting[i])
      if waiter and waiter.mode == 's' and waiter.alive > now then return waiter.limit end
    end
  end
end

-- Whoever did not come when it was woken stands in no line; if it is dead nobody else comes across it.
local function forget_the_dead()
  local in_line = ask('ZCARD', KEYS[2])
  for _ in pairs(kept) do in_line = in_line + 1 end
  if ask('HLEN', KEYS[3]) <= in_line then return end
  for _, other in ipairs(ask('HKEYS', KEYS[3])) do
    local waiter = read_waiter(other)
    if not kept[other] and not (waiter and is_alive(waiter.alive)) then drop_waiter(other) end
  end
end

look()
local mine = holds[id]
if mine and not mine.ended then return grant_again(mine) end
if gone[id] then
  save()
  return { 0, -1, false, false }
end
if damage then
  save()
  return { damage }
end
own = crowded and read_waiter(id) or nil
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
if own and kept[id] then
  take_room(mode, -1)
  return grant()
end
local before_us = false
if crowded then
  local first, waiter = first_in_line()
  before_us = first and first ~= id and (not own or waiter.place < own.place)
end
if not before_us and fits(mode, limit) then return grant() end

if ARGV[7] ~= '' then
  local place = own and own.place or agreed_place or count_number()
  ask('HSET', KEYS[3], id, text(now + PRESENCE) .. ' ' .. text(place) .. ' ' .. mode .. ' ' .. limit .. ' '
    .. ARGV[7] .. ' ' .. holder)
  ask('ZADD', KEYS[2], place, id)
  redis.call('PEXPIRE', KEYS[2], LINGER_MS)
  redis.call('PEXPIRE', KEYS[3], LINGER_MS)
  nobody_in_line = false
  if not crowded then crowded, changed = true, true end
end
local ahead = crowded and (ask('ZRANK', KEYS[2], id) or ask('ZCARD', KEYS[2])) or 0
local room_at
local function ends(at)  -- all must be gone for a claim that is exclusive
  if not room_at or (mode == 'x' and at > room_at) or (mode ~= 'x' and at < room_at) then room_at = at end
end
for _, hold in inside() do ends(hold.ends) end
for _, one in pairs(kept) do
  if not own or one.place < own.place then ahead = ahead + 1 end
  ends(one.until_)
end
if ARGV[7] ~= '' then forget_the_dead() end
local who, whose = false, false
for other, hold in inside() do who, whose = hold.holder, other end
save()
return { ahead, room_at and math.max(0, room_at - now) or -1, who, whose }
