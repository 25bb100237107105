-- End a vote of a minority. A claim that waits stays in the queue, and is reserved for again if it is the first. If the
-- server passed it over, votes would go back and forth between two claims that wait for each other's vote.
-- This may arrive after the same claim was granted again.
-- KEYS  see library.lua
-- ARGV  1 claim   2 the highest fence to give back   3 order in the queue   4 address, "" not to wait   5 now, or nothing
local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
local now = tonumber(ARGV[5]) or wall
local id = ARGV[1]

local frees = true
--@library

refresh()
local mine = hold_of(id)
if mine and not mine.ended and mine.fence <= tonumber(ARGV[2]) then
  end_hold(id)
  if ARGV[4] ~= '' then
    ask('HSET', KEYS[3], id, text(now + PRESENCE_US) .. ' ' .. ARGV[3] .. ' x 0 ' .. ARGV[4] .. ' '
      .. text(mine.ttl) .. ' ' .. mine.holder .. ' ' .. mine.metadata)
    ask('ZADD', KEYS[2], ARGV[3], id)
    redis.call('PEXPIRE', KEYS[2], WAITERS_TTL_MS)
    redis.call('PEXPIRE', KEYS[3], WAITERS_TTL_MS)
    contended, queue_is_empty = true, false
  end
  hand_over()
  if contended and ARGV[4] == '' then first_in_queue() end  -- it may have been the last
end
save()
return 0
