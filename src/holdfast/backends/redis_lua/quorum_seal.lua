-- A hold goes by that fence from now on, which a majority agreed on; whoever comes later gets a higher one.
-- KEYS  see library.lua
-- ARGV  1 claim   2 fence   3 now, or nothing
-- Answers 1, or 0 if the claim does not hold.
local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
local now = tonumber(ARGV[3]) or wall
local id, fence = ARGV[1], tonumber(ARGV[2])

--@library

look()
local hold = holds[id]
local held = hold and not hold.ended
if held then
  hold.fence, number, changed = fence, math.max(number, fence), true
  tell(fence, hold.holder)
end
save()
return held and 1 or 0
