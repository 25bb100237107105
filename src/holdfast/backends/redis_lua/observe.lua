-- KEYS  see library.lua
-- ARGV  1 claim   2 after   3 address   4 now, or nothing
-- Answers { microseconds until time may change something or -1, "number fence +holder" or "number fence -" for each change }.
local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
local now = tonumber(ARGV[4]) or wall
local id, after = ARGV[1], ARGV[2]

local frees = false
--@library

look()
local known = redis.call('HGET', KEYS[4], id)
if known and tonumber(string.match(known, '^(%d+)')) <= now then known = false end
redis.call('HSET', KEYS[4], id, text(now + PRESENCE) .. ' ' .. ARGV[3])
redis.call('PEXPIRE', KEYS[4], LINGER_MS)
if not observed then crowded, observed, changed = true, true, true end
local changes = {}
if known and after ~= '0' then
  changes = redis.call('ZRANGEBYSCORE', KEYS[5], '(' .. after, '+inf')
else
  local number = text(count_number())
  for _, hold in inside() do
    if not hold.ended then changes[#changes + 1] = number .. ' ' .. text(hold.fence) .. ' +' .. hold.holder end
  end
  if #changes == 0 then changes[1] = number .. ' 0 -' end
end
local soonest = soonest_end()
save()
return { soonest and math.max(0, soonest - now) or -1, changes }
