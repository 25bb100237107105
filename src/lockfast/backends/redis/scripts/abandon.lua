-- KEYS  see library.lua
-- ARGV  1 claim   2 "1" if a request of it may arrive later, "2" if none can, "0" if that is not known   3 now, or nothing
--       from Redlock, with 3 "" for nothing:   4 microseconds for which the tombstone stays at least
local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
local now = tonumber(ARGV[3]) or wall
local id = ARGV[1]

local frees = true
--@library

local made_room = expire()
local mine, waiter = hold_of(id), (contended or damage == 'all') and read_waiter(id)
if waiter then
  if reserved[id] then take_room(waiter.mode, -1) end
  drop_waiter(id)
end
if mine and not mine.ended then end_hold(id) end
if waiter or mine or made_room then
  hand_over()
  first_in_queue()  -- notices if it was the last waiter
end
local watched = contended and ask('HDEL', KEYS[4], id) == 1
if watched then
  changed = true
  if redis.call('EXISTS', KEYS[4]) == 0 then redis.call('DEL', KEYS[5]) end
end
if ARGV[2] == '1' or (ARGV[2] == '0' and not mine and not waiter and not watched) then
  -- A request of it may still arrive on another connection. The tombstone keeps it from taking effect.
  tombstones[id] = now + math.max(WAITERS_TTL_MS * 1000, tonumber(ARGV[4] or 0))
  count_number()
end
save()
return 0
