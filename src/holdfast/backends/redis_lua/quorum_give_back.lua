-- A vote of a minority is in nobody's way. As `abandon`, but the same claim may be granted anew, even before this arrives.
-- KEYS  see library.lua
-- ARGV  1 claim   2 the highest fence that is meant   3 now, or nothing
local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
local now = tonumber(ARGV[3]) or wall
local id = ARGV[1]

local frees = true
--@library

look()
local mine, waiter = holds[id], crowded and read_waiter(id)
if waiter then
  if kept[id] then take_room(waiter.mode, -1) end
  drop_waiter(id)
end
local given_back = mine and not mine.ended and mine.fence <= tonumber(ARGV[2])
if given_back then end_hold(id) end
if waiter or given_back then
  hand_over()
  first_in_line()  -- it may have been the last
end
save()
return 0
