-- What all scripts but the quick ones share: a name as one script sees it. Mirrors memory/resource.py; read that first.
-- A script that includes this has set `frees`: true if it must succeed on a server whose memory is full.
--
-- KEYS  1 held: who holds   2 queue: sorted set of waiters by place   3 waiters: hash
--       4 observers: hash   5 changes: sorted set by number   6 lapsed: sorted set of waiters by `alive`
--       7 rows: hash of shared holds, if there are many   8 ends: sorted set of those claims by their end
--       9 listed: string, there while clients list names; of no name, so not in a cluster. See listed.lua
-- `held` is one string: the last number given out in 16 digits, a sign, and a line for each
--   claim base fence acquired ttl mode limit holder metadata      holder, whose hold ends at base + ttl
--   ~claim ...                                                    holder that has released, and lingers
--   ?claim until alive place mode                                 waiter that the name is reserved for
--   !claim until                                                  tombstone: a claim that was abandoned before it arrived
--   #limit latest                                                 all holds are in `rows`, see rows.lua; `latest` is their last base
-- The sign is "-" if the name is free, and then nothing follows; "+" if there may be waiters; "*" if there may be
-- observers too; else "=". A waiter is "alive place mode limit address ttl holder metadata", whose last request came
-- PRESENCE_US before `alive`; an observer "alive address". Times are
-- microseconds, a limit of 0 is none. Numbers are written in full: 53 bits are exact here.
-- Each waiter is in the queue; or it was woken and is in `held`, with a "?"; or it was woken and has not come in time, and is
-- in `lapsed`: it is passed over until it asks again, and then has its old place.
-- Other programs can write anything there. A line that cannot be read, and a second hold of one claim, stay as they are,
-- and no claim is granted beside them. If the number or the sign cannot be read, that is true of the whole string. A
-- waiter or an observer that cannot be read is deleted: it asks again.
-- A call of the server costs about as much as the rest of a script, so there are few.

local holds, ids, reserved, tombstones, exclusive, shared = {}, {}, {}, {}, 0, 0
local unreadable, damage = {}, nil  -- lines that cannot be read; "some" if there are any, "all" if nothing can be read
local number, contended, observed, changed, queue_is_empty = 0, false, false, false, false
local was_free = true
local rows  -- nil if the holds are in the string; else what "#" says, the number of holds, and the functions of rows.lua

local function text(number) return string.format('%d', number) end

-- A key of another type is deleted first. A server whose memory is full refuses a write that needs memory, but not in a
-- script that has written before. Only scripts that free memory make use of that.
local function write(command, key, ...)
  local done = redis.pcall(command, key, ...)
  if type(done) ~= 'table' or not done.err then return end
  if string.find(done.err, 'WRONGTYPE', 1, true) then redis.call('DEL', key)
  elseif frees then redis.call('PEXPIRE', KEYS[1], FENCE_TTL_MS)
  else error(done.err) end
  redis.call(command, key, ...)
end

local function take_room(mode, amount)
  if mode == 'x' then exclusive = exclusive + amount else shared = shared + amount end
end

-- Whether all of these were matched, and are numbers that can be written back.
local function are_numbers(...)
  for i = 1, select('#', ...) do
    local digits = select(i, ...)
    if not digits or #digits > 16 or tonumber(digits) > MAX_NUMBER then return false end
  end
  return true
end

-- Run a command on any key but `held`. A key of another type is deleted first.
local function ask(command, key, ...)
  local answer = redis.pcall(command, key, ...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  if string.find(answer.err, 'WRONGTYPE', 1, true) then redis.call('DEL', key) end
  return redis.call(command, key, ...)
end

local function add_hold(id, hold)
  ids[#ids + 1] = id
  hold.place = #ids
  holds[id] = hold
end

-- The holds that were read, the oldest first.
local function inside()
  local place = 0
  return function()
    repeat
      place = place + 1
      local id = ids[place]
      local hold = holds[id]
      if not id or (hold and hold.place == place) then return id, hold end
    until false
  end
end

local function use_rows()
--@rows
end

local function read_line(line)
  local sign = string.sub(line, 1, 1)
  if sign == '?' then
    local id, until_, alive, place, mode = string.match(line, '^?(%S+) (%d+) (%d+) (%d+) ([xs])$')
    if not are_numbers(until_, alive, place) then return false end
    if reserved[id] then return true end  -- a repetition, which gives no claim a hold
    reserved[id] = { until_ = tonumber(until_), alive = tonumber(alive), place = tonumber(place), mode = mode }
    take_room(mode, 1)
  elseif sign == '!' then
    local id, until_ = string.match(line, '^!(%S+) (%d+)$')
    if not are_numbers(until_) then return false end
    if tonumber(until_) > now then tombstones[id] = tonumber(until_) end
  elseif sign == '#' then
    if rows then return false end
    use_rows()
    if not rows.begin(line) then
      rows = nil
      return false
    end
  else
    local ended, id, base, fence, acquired, ttl, mode, limit, holder, metadata =
      string.match(line, '^(~?)(%S+) (%d+) (%d+) (%d+) (%d+) ([xs]) (%d+) (%S*) (.*)$')
    if not are_numbers(base, fence, acquired, ttl, limit) or tonumber(ttl) > MAX_TTL_US or holds[id] then return false end
    add_hold(id, { base = tonumber(base), ttl = tonumber(ttl), fence = tonumber(fence), acquired = acquired,
      ended = ended == '~', mode = mode, limit = limit, holder = holder, metadata = metadata, ends = base + ttl })
    take_room(mode, 1)
  end
  return true
end

local function read_state()
  local state = redis.pcall('GET', KEYS[1])
  if not state then return end
  if type(state) == 'table' then
    if not string.find(state.err, 'WRONGTYPE', 1, true) then redis.call('GET', KEYS[1]) end  -- to fail with the same error
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
  was_free = false
  contended = sign == '+' or sign == '*'
  observed = sign == '*' and redis.call('EXISTS', KEYS[4]) == 1
  for line in string.gmatch(string.sub(state, 18), '[^\n]+') do
    if not read_line(line) then
      unreadable[#unreadable + 1] = line
      damage = 'some'
      take_room('x', 1)
    end
  end
end

-- The claim's hold; or nil, and the damage if there is one that cannot be read.
local function hold_of(id)
  if holds[id] or not rows then return holds[id] end
  return rows.read(id)
end

-- When the first or the last of the holds ends (nil if there is none), and which claim's that is.
local function end_of_holds(last)
  local at, whose
  for id, hold in inside() do
    if not at or (hold.ends < at) ~= last then at, whose = hold.ends, id end
  end
  if rows then
    local id, ends = unpack(ask('ZRANGE', KEYS[8], last and -1 or 0, last and -1 or 0, 'WITHSCORES'))
    if id and not holds[id] and (not at or (tonumber(ends) < at) ~= last) then at, whose = tonumber(ends), id end
  end
  return at, whose
end

-- Whether there may be waiters or observers. The server is asked only once the queue was seen to be empty: a waiter whose
-- reservation lapsed is in no queue, but may come back to its place.
local function still_contended()
  return contended and (not queue_is_empty or next(reserved) ~= nil or redis.call('EXISTS', KEYS[3], KEYS[4]) > 0)
end

-- Every script that changes anything ends with this. The key outlives its holds by FENCE_TTL_MS, and with it the last number.
local function save()
  if not changed or damage == 'all' then return end
  contended = still_contended()
  if rows then
    if rows.count <= FEW_HOLDS and rows.read_all() == 0 then rows.drop() end
  elseif exclusive == 0 and shared > MANY_HOLDS then
    use_rows()
    if not rows.take_over() then rows = nil end
  end
  local lines, longest = {}, 0
  if rows then
    lines[1], longest = '#' .. rows.limit .. ' ' .. text(now), rows.save() - now
  else
    for id, hold in inside() do
      lines[#lines + 1] = string.format('%s %d %d %s %d %s %s %s %s', hold.ended and '~' .. id or id, hold.base, hold.fence,
        hold.acquired, hold.ttl, hold.mode, hold.limit, hold.holder, hold.metadata)
      longest = math.max(longest, hold.base + hold.ttl - now)
    end
  end
  for id, one in pairs(reserved) do
    lines[#lines + 1] = string.format('?%s %d %d %d %s', id, one.until_, one.alive, one.place, one.mode)
  end
  for id, until_ in pairs(tombstones) do lines[#lines + 1] = '!' .. id .. ' ' .. text(until_) end
  for _, line in ipairs(unreadable) do lines[#lines + 1] = line end
  local sign = contended and (observed and '*' or '+') or #lines == 0 and '-' or '='
  local lives = math.ceil((longest + math.max(0, number - wall)) / 1000) + FENCE_TTL_MS  -- longer if the clock was set back
  write('SET', KEYS[1], string.format('%016d', number) .. sign .. table.concat(lines, '\n'), 'PX', lives)
  -- After `write`, whose command is not refused if the server's memory is full: nor is this then.
  if was_free and sign ~= '-' and KEYS[9] and redis.pcall('EXISTS', KEYS[9]) == 1 then
--@note_name
  end
  if rows then
    redis.call('PEXPIRE', KEYS[7], lives)
    redis.call('PEXPIRE', KEYS[8], lives)
  end
end

local function count_number()
  number = math.max(number + 1, wall)
  changed = true
  return number
end

-- A waiter that asked before the clock was set back may have been dead for long; if it lives, it asks again.
local function is_alive(until_) return until_ > now and until_ <= now + PRESENCE_US end

-- Nil if there is none, or if it cannot be read.
local function waiter_in(record)
  if not record then return nil end
  local alive, place, mode, limit, address, ttl, holder, metadata =
    string.match(record, '^(%d+) (%d+) ([xs]) (%d+) (%S*) (%d+) (%S*) (.*)$')
  if not are_numbers(alive, place, limit, ttl) or tonumber(ttl) > MAX_TTL_US then return nil end
  return { alive = tonumber(alive), place = tonumber(place), mode = mode, limit = limit, address = address,
    ttl = tonumber(ttl), holder = holder, metadata = metadata }
end

local function read_waiter(id) return waiter_in(ask('HGET', KEYS[3], id)) end

local function drop_waiter(id)
  if reserved[id] then
    reserved[id] = nil
  elseif ask('ZREM', KEYS[2], id) == 0 then
    ask('ZREM', KEYS[6], id)
  end
  ask('HDEL', KEYS[3], id)
  changed = true
end

-- A waiter that was taken out of the queue and does not come is passed over until it asks again. The key outlives `waiters`,
-- so that each dead waiter there is found.
local function pass_over(id, alive)
  write('ZADD', KEYS[6], alive, id)
  redis.call('PEXPIRE', KEYS[6], DAY_US / 1000)
end

local function record_change(fence, holder)
  if not observed then return end
  local number = count_number()
  write('ZADD', KEYS[5], number, text(number) .. ' ' .. text(fence) .. ' ' .. (holder and ('+' .. holder) or '-'))
  redis.call('ZREMRANGEBYRANK', KEYS[5], 0, -MAX_KEPT_CHANGES - 1)
  redis.call('PEXPIRE', KEYS[5], WAITERS_TTL_MS)
  local observers = ask('HGETALL', KEYS[4])
  for i = 1, #observers, 2 do
    local alive, address = string.match(observers[i + 1], '^(%d+) (%S*)$')
    if alive and tonumber(alive) > now then
      redis.pcall('PUBLISH', address, observers[i])
    else
      redis.call('HDEL', KEYS[4], observers[i])
    end
  end
end

local function end_hold(id)
  local hold = holds[id] or (observed and hold_of(id))
  holds[id] = nil
  take_room(hold and hold.mode or 's', -1)
  changed = true
  if rows then rows.delete(id) end
  if hold then record_change(hold.fence, nil) end
end

local function fits(mode, limit)
  if exclusive > 0 then return false end
  if mode == 'x' then return shared == 0 end
  return limit == '0' or shared < tonumber(limit)
end

-- Make the claim a holder. One that has released, and lingers, takes room already.
local function admit(id, ttl, mode, limit, holder, metadata)
  local fence = count_number()
  if not hold_of(id) then
    take_room(mode, 1)
    if rows then rows.count = rows.count + 1 end
  end
  add_hold(id, { base = now, ttl = ttl, fence = fence, acquired = text(wall), ended = false, mode = mode, limit = limit,
    holder = holder, metadata = metadata, ends = now + ttl })
  record_change(fence, holder)
  return fence
end

-- Serve a waiter that was taken out of the queue, as `offer_to` in _model.py has it, and wake it: make it the holder and send
-- it the grant; or reserve for it, if it confirms; or pass it over until it asks again. The claim `asking` asks now. If its
-- address has no subscriber, its process is dead or has lost its connection, and it is passed over. In a cluster the subscriber
-- may be at another node, so nothing is known. Where this user may not publish, the waiter finds out when it next polls.
-- A grant that is sent must be made: so the server is asked for subscribers before, because PUBLISH reaches those of replicas too
-- and does not count them. A user who may not ask that has waiters that confirm.
local function serve(id, waiter, asking)
  changed = true
  local silent = id == asking and 0 or now - waiter.alive + PRESENCE_US
  if not string.find(waiter.address, CONFIRMS, 1, true) then
    if silent > RECENT_US then return pass_over(id, waiter.alive) end
    if silent * 4 <= waiter.ttl then
      if (redis.pcall('PUBSUB', 'NUMSUB', waiter.address)[2] or 0) > 0 then
        ask('HDEL', KEYS[3], id)
        local fence = admit(id, waiter.ttl, waiter.mode, waiter.limit, waiter.holder, waiter.metadata)
        redis.pcall('PUBLISH', waiter.address, id .. ' ' .. text(fence) .. ' ' .. text(wall))
        return
      end
    end
  end
  local receivers = redis.pcall('PUBLISH', waiter.address, id)
  if receivers == 0 and not string.find(waiter.address, CLUSTERED, 1, true) then return pass_over(id, waiter.alive) end
  reserved[id] = { until_ = now + GRACE_US, alive = waiter.alive, place = waiter.place, mode = waiter.mode }
  take_room(waiter.mode, 1)
end

-- The id and the record of the first live waiter in the queue; dead ones before it are deleted.
local function first_in_queue()
  while true do
    local id = ask('ZRANGE', KEYS[2], 0, 0)[1]
    if not id then
      queue_is_empty, changed = true, true
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
        serve(id, waiter)
      end
      return
    end
  end
end

-- The one rule of admission, as `next_offers` in _model.py has it: serve the waiters that fit, in order.
local function hand_over(successor, asking)
  if not contended then return end
  if successor and successor ~= '' then serve_successor(successor) end
  while exclusive == 0 do
    local id, waiter = first_in_queue()
    if not id or not fits(waiter.mode, waiter.limit) then return end
    redis.call('ZREM', KEYS[2], id)
    serve(id, waiter, asking)
  end
end

-- Read the state and end what has expired; whether that has made room. A step that is to end a claim itself does so before it
-- hands over: else it might end what it has just granted.
local function expire()
  read_state()
  local over = {}
  if rows and rows.latest > now then rows.read_all() end  -- the clock was set back
  for id, hold in inside() do
    if hold.base > now then  -- the clock was set back: its ttl counts from now
      hold.base, hold.ends, changed = now, now + hold.ttl, true
    end
    if hold.ends <= now then over[#over + 1] = id end
  end
  if rows and #ids == 0 then over = ask('ZRANGEBYSCORE', KEYS[8], '-inf', text(now)) end
  local made_room = #over > 0
  for _, id in ipairs(over) do end_hold(id) end
  for id, one in pairs(reserved) do
    if one.until_ > now + GRACE_US then one.until_, changed = now + GRACE_US, true end
    if one.alive <= now or one.until_ <= now then
      -- Dead, and then deleted; or its reservation lapsed.
      if one.alive <= now then ask('HDEL', KEYS[3], id) else pass_over(id, one.alive) end
      reserved[id] = nil
      take_room(one.mode, -1)
      made_room, changed = true, true
    end
  end
  return made_room
end

-- Read the state, end what has expired, and hand over the room that it took.
local function refresh(asking)
  if expire() then hand_over(nil, asking) end
end
