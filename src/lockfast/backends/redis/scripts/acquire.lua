-- KEYS  see library.lua
-- ARGV  1 ttl   2 mode   3 limit   4 holder   5 metadata   6 claim   7 address, "" not to wait   8 now, or nothing
--       from Redlock, with 8 "" for nothing:   9 the fence that is proposed, in place of the clock
--       10 its place in the queue, which is the same at every server
-- Returns "fence acquired" if granted, then " =" if it held before, and "+" if others hold, wait or observe;
-- { other limit }; { damage }; or { waiters ahead, microseconds until a poll makes sense or -1, holder or false, its claim
-- or false, the last number given out }.
local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]
local now, wall, agreed_place = tonumber(ARGV[8]) or clock, tonumber(ARGV[9]) or clock, tonumber(ARGV[10])
local ttl, mode, limit, holder, metadata, id = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

if #holder + #metadata > PLAIN or string.find(holder .. metadata, '\n', 1, true) then
--@limits
end

-- Fast path of hand_over for a contended mutex: one claim holds it or has it reserved, others wait, there is no observer.
-- Everything else is left to the full script below, and so is every hundredth request, which deletes what is dead.
-- A plain `find` takes a fraction of what a pattern takes, so the id, the fence and the moment of the grant are passed over.
local state = redis.pcall('GET', KEYS[1])
local last = type(state) == 'string' and state:sub(17, 17) == '+' and tonumber(state:sub(1, 16))
if mode == 'x' and last and last <= wall and not state:find('\n', 18, true) then
  local next_number = string.format('%016d', last < wall and wall or wall + 1)
  local reserved, alive, whose, base, held_for, who
  if state:sub(18, 18) == '?' then
    reserved, alive = state:match('^%S+ (%d+) (%d+)', 19)
  else
    local id_ends = state:find(' ', 18, true)
    local base_ends = id_ends and state:find(' ', id_ends + 1, true)
    if base_ends then
      held_for, who = state:match('^ (%d+) x 0 (%S*) ', base_ends + 34)
      whose, base = state:sub(18, id_ends - 1), tonumber(state:sub(id_ends + 1, base_ends - 1))
    end
  end
  if reserved and state:sub(19, 19 + #id) == id .. ' ' then
    if tonumber(reserved) > now and tonumber(alive) > now then
      redis.pcall('HDEL', KEYS[3], id)
      local clock = string.format('%d', wall)
      redis.call('SET', KEYS[1], next_number .. '+' .. id .. string.format(' %d ', now) .. next_number .. ' ' .. clock
        .. ' ' .. ARGV[1] .. ' x 0 ' .. holder .. ' ' .. metadata, 'PX', math.ceil(ttl / 1000) + FENCE_TTL_MS)
      return next_number .. ' ' .. clock .. ' +'
    end
  elseif ARGV[7] ~= '' and next_number:sub(-2) ~= '00' and ((reserved and tonumber(reserved) > now and tonumber(alive) > now)
      or (base and held_for and base <= now and held_for + 0 <= MAX_TTL_US and base + held_for > now and whose ~= id)) then
    local queue = redis.pcall('ZRANGE', KEYS[2], '0', '0', 'WITHSCORES')
    local first, since = queue[1], tonumber(queue[2])
    -- A place is when its claim first asked, by the server's clock: one that was late since then has been moved away.
    local first_lives = not first or (now == wall and since <= now and since > now - PRESENCE_US)
    if not first_lives then
      local waiter = redis.pcall('HGET', KEYS[3], first)
      local until_ = type(waiter) == 'string' and tonumber(waiter:match('^%d+')) or 0
      first_lives = until_ > now and until_ <= now + PRESENCE_US
    end
    local place = ARGV[10] or next_number
    local record = string.format('%d ', now + PRESENCE_US) .. place .. ' x 0 ' .. ARGV[7] .. ' ' .. ARGV[1] .. ' ' .. holder
      .. ' ' .. metadata
    if not queue.err and first_lives and redis.pcall('HSETNX', KEYS[3], id, record) == 1 then
      redis.call('SET', KEYS[1], next_number .. state:sub(17), 'KEEPTTL')
      redis.call('ZADD', KEYS[2], place, id)
      local ahead = ARGV[10] and redis.call('ZRANK', KEYS[2], id) or redis.call('ZCARD', KEYS[2]) - 1
      if ahead == 0 then  -- else the waiters before it keep these keys alive
        redis.call('PEXPIRE', KEYS[2], WAITERS_TTL_MS)
        redis.call('PEXPIRE', KEYS[3], WAITERS_TTL_MS)
      end
      local soonest = reserved and tonumber(reserved) or base + held_for
      return { reserved and ahead + 1 or ahead, soonest - now, who or false, whose or false, tonumber(next_number) }
    end
  end
end

local frees = false
--@library

local own  -- its record as a waiter

local function grant()
  if own then drop_waiter(id) end
  local alone = exclusive + shared == 0
  local fence = admit(id, ttl, mode, limit, holder, metadata)
  save()
  return text(fence) .. ' ' .. text(wall) .. ((contended or not alone) and ' +' or '')
end

local function grant_again(hold)
  if hold.ends < now + ttl then hold.base, hold.ttl = now, ttl end
  local shares = mode == 's' and hold.mode == 'x'  -- it held alone, and shares from now on
  if shares then
    hold.mode, hold.limit = 's', limit
    exclusive, shared = exclusive - 1, shared + 1
    hand_over()
  end
  changed = true
  save()
  return text(hold.fence) .. ' ' .. hold.acquired .. ' =' .. (contended and '+' or '')
end

-- All claims that share a name, or wait to, have one limit, so it is enough to read one of them.
local function other_limit()
  if rows and rows.count > (holds[id] and 1 or 0) then return rows.limit end
  for other, hold in inside() do
    if hold.mode == 's' and other ~= id then return hold.limit end
  end
  if not contended then return nil end
  local function shares(waiter) return waiter and waiter.mode == 's' and waiter.alive > now end
  for other in pairs(reserved) do
    local waiter = read_waiter(other)
    if shares(waiter) then return waiter.limit end
  end
  for _, key in ipairs({ KEYS[2], KEYS[6] }) do
    local from, others = 0, nil
    repeat
      others = ask('ZRANGE', key, from, from + MAX_WAITERS_AT_ONCE - 1)
      local records = #others > 0 and ask('HMGET', KEYS[3], unpack(others)) or {}
      for place, record in ipairs(records) do
        local waiter = others[place] ~= id and waiter_in(record)
        if shares(waiter) then return waiter.limit end
      end
      from = from + #others
    until #others < MAX_WAITERS_AT_ONCE
  end
end

-- Nothing else deletes a dead waiter that is in no queue. One that is alive for too long asked before the clock was set back.
local function forget_dead_waiters()
  if ask('ZCARD', KEYS[6]) == 0 then return end
  for _, range in ipairs({ { '-inf', text(now) }, { '(' .. text(now + PRESENCE_US), '+inf' } }) do
    local dead = ask('ZRANGEBYSCORE', KEYS[6], range[1], range[2], 'LIMIT', 0, MAX_WAITERS_AT_ONCE)
    for _, other in ipairs(dead) do
      local waiter = read_waiter(other)
      if waiter and is_alive(waiter.alive) then ask('ZREM', KEYS[6], other) else drop_waiter(other) end
    end
  end
end

refresh(id)
local mine, unread = hold_of(id)
if mine and not mine.ended then return grant_again(mine) end
damage = damage or unread
if tombstones[id] then
  save()
  return { 0, -1, false, false, number }
end
if damage then
  save()
  return { damage }
end
own = contended and read_waiter(id) or nil
if own and own.alive <= now then
  drop_waiter(id)  -- it was silent for too long, so its place is void
  own = nil
end
if mode == 's' and not own then
  local other = other_limit()
  if other and other ~= limit then
    save()
    return { tonumber(other) }
  end
end
if own and reserved[id] then
  take_room(mode, -1)
  return grant()
end
local others_first = false
if contended then
  local first, waiter = first_in_queue()
  others_first = first and first ~= id and (not own or waiter.place < own.place)
end
if not others_first and fits(mode, limit) then return grant() end

if ARGV[7] ~= '' then
  local place = own and own.place or agreed_place or count_number()
  ask('HSET', KEYS[3], id, text(now + PRESENCE_US) .. ' ' .. text(place) .. ' ' .. mode .. ' ' .. limit .. ' '
    .. ARGV[7] .. ' ' .. ARGV[1] .. ' ' .. holder .. ' ' .. metadata)
  if ask('ZADD', KEYS[2], place, id) == 1 and own then ask('ZREM', KEYS[6], id) end
  redis.call('PEXPIRE', KEYS[2], WAITERS_TTL_MS)
  redis.call('PEXPIRE', KEYS[3], WAITERS_TTL_MS)
  queue_is_empty = false
  if not contended then contended, changed = true, true end
end
local ahead = contended and (ask('ZRANK', KEYS[2], id) or ask('ZCARD', KEYS[2])) or 0
-- An exclusive claim waits for the last of them, a shared one for the first.
local room_at, whose = end_of_holds(mode == 'x')
for _, one in pairs(reserved) do
  if not own or one.place < own.place then ahead = ahead + 1 end
  if not room_at or (one.until_ > room_at) == (mode == 'x') then room_at = one.until_ end
end
if ARGV[7] ~= '' then forget_dead_waiters() end
local hold = whose and hold_of(whose)
save()
return { ahead, room_at and math.max(0, room_at - now) or -1, hold and hold.holder or false, hold and whose or false, number }
