-- Grants if the name is free and nobody waits or watches; else `acquire` has to look.
-- KEYS  1 held, see library.lua
-- ARGV  1 claim   2 " ttl mode limit holder metadata"   3 milliseconds that the key lives   4 now, or nothing
-- Answers the fence, or "fence acquired", or false.
local state = redis.call('GET', KEYS[1])
if state and string.sub(state, 17, 17) ~= '-' then return false end
local time = redis.call('TIME')
local clock = time[1] .. string.sub('00000' .. time[2], -6)
local fence, lives = clock, ARGV[3]
if state and state >= clock then  -- the clock was set back: then the last number is remembered for longer
  fence = string.format('%016d', string.sub(state, 1, 16) + 1)
  lives = math.ceil((fence - clock) / 1000) + lives
end
redis.call('SET', KEYS[1], fence .. '=' .. ARGV[1] .. ' ' .. (ARGV[4] or clock) .. ' ' .. fence .. ' ' .. clock .. ARGV[2],
  'PX', lives)
if fence == clock then return clock end
return fence .. ' ' .. clock
