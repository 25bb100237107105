-- KEYS  see library.lua
-- ARGV  1 claim   2 now, or nothing
local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
local now = tonumber(ARGV[2]) or wall
local id = ARGV[1]

--@library

look()
local mine, waiter = holds[id], crowded and read_waiter(id)
if waiter then
  if redis.call('HEXISTS', KEYS[4], id) == 1 then take_room(waiter.mode, -1) end
  drop_waiter(id)
end
if mine and not mine.ended then end_hold(id) end
if waiter or mine then hand_over() end
local watched = crowded and redis.call('HDEL', KEYS[5], id) == 1
if watched then
  changed = true
  if redis.call('EXISTS', KEYS[5]) == 0 then redis.call('DEL', KEYS[6]) end
end
if not mine and not waiter and not watched then
  -- Its request may still be on its way, on another connection, and must not take effect after this one.
  gone[id] = now + LINGER_MS * 1000
  count_number()
end
save()
return 0
