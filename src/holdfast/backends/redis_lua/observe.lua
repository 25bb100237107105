-- ARGV  1 now or ""   2 claim   3 after   4 address
local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
local now = ARGV[1] == '' and wall or tonumber(ARGV[1])
local id, after = ARGV[2], ARGV[3]

--@library

look()
local known = redis.call('HGET', KEYS[5], id)
if known and tonumber(string.match(known, '^(%d+)')) <= now then known = false end
redis.call('HSET', KEYS[5], id, text(now + PRESENCE) .. ' ' .. ARGV[4])
redis.call('PEXPIRE', KEYS[5], LINGER_MS)
redis.call('HSET', KEYS[1], 'q', '1')
local changes = {}
if known and after ~= '0' then
  changes = redis.call('ZRANGEBYSCORE', KEYS[6], '(' .. after, '+inf')
else
  local number = text(count_number())
  for _, hold in pairs(holds) do
    if not hold.ended then changes[#changes + 1] = number .. ' ' .. text(hold.fence) .. ' +' .. hold.holder end
  end
  if #changes == 0 then changes[1] = number .. ' 0 -' end
end
local soonest = soonest_end()
return { soonest and math.max(0, soonest - now) or -1, changes }
