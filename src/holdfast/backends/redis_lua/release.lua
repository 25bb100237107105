-- KEYS  see library.lua
-- ARGV  1 claim   2 linger   3 heir   4 now, or nothing
-- Answers 1 if it held until now, 2 if others wait or watch besides, 0 if it did not hold.
local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
local now = tonumber(ARGV[4]) or wall
local id, linger = ARGV[1], tonumber(ARGV[2])

--@library

look()
local hold = holds[id]
local held = hold and not hold.ended
if held and linger > 0 then
  hold.ended, hold.base, hold.ttl, changed = true, now, linger, true
elseif held then
  end_hold(id)
  hand_over(ARGV[3])
end
save()
return held and (crowded and 2 or 1) or 0
