-- Fast path of hand_over: grants if the name is free, without waiters or observers; else `acquire` decides.
-- KEYS  1 held, see library.lua
-- ARGV  1 claim   2 " ttl mode limit holder metadata"   3 ttl of the key in milliseconds   4 now, or nothing
-- Returns the fence, or "fence acquired", or false.
--@record_limits
local state = redis.pcall('GET', KEYS[1])
if state and (type(state) == 'table' or string.match(state, '^%d+()%-') ~= 17) then return false end
local time = redis.call('TIME')
local clock = time[1] .. string.sub('00000' .. time[2], -6)
local fence, lives = clock, ARGV[3]
if state and state >= clock then  -- the clock was set back: then the key keeps the last number for longer
  fence = string.format('%016d', string.sub(state, 1, 16) + 1)
  if tonumber(fence) > MAX_NUMBER then return false end
  lives = math.ceil((fence - clock) / 1000) + lives
end
redis.call('SET', KEYS[1], fence .. '=' .. ARGV[1] .. ' ' .. (ARGV[4] or clock) .. ' ' .. fence .. ' ' .. clock .. ARGV[2],
  'PX', lives)
if fence == clock then return clock end
return fence .. ' ' .. clock
