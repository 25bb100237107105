-- Give a hold the fence that a majority agreed on; later grants get a higher one.
-- KEYS  see library.lua
-- ARGV  1 claim   2 fence   3 the fence that it has so far   4 now, or nothing
-- Returns 1, or 0 if the claim does not hold, or has yet another fence: then this came late.
local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
local now = tonumber(ARGV[4]) or wall
local id, fence, before = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local frees = false
--@library

refresh()
local hold = hold_of(id)
local held = hold and not hold.ended
if held and hold.fence == before then
  hold.fence, number, changed = fence, math.max(number, fence), true
  record_change(fence, hold.holder)
end
save()
return held and hold.fence == fence and 1 or 0
