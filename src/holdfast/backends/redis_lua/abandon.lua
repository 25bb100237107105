-- ARGV  1 now or ""   2 claim
local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
local now = ARGV[1] == '' and wall or tonumber(ARGV[1])
local id = ARGV[2]

--@library

look()
local mine, waits = holds[id], redis.call('HEXISTS', KEYS[3], id) == 1
if waits then
  local waiter = read_waiter(id)
  if redis.call('HEXISTS', KEYS[4], id) == 1 then take_room(waiter.mode, -1) end
  drop_waiter(id)
end
if mine and not mine.ended then end_hold(id) end
if waits or mine then hand_over() end
local watches = redis.call('HDEL', KEYS[5], id) == 1
if not mine and not waits and not watches then
  -- Its request may still be on its way, on another connection, and must not take effect after this one.
  redis.call('HSETNX', KEYS[1], 'f', text(wall))
  redis.call('HSET', KEYS[1], '!' .. id, text(now + LINGER_MS * 1000))
  remember()
end
if watches and redis.call('EXISTS', KEYS[5]) == 0 then redis.call('DEL', KEYS[6]) end
tidy()
return 0
