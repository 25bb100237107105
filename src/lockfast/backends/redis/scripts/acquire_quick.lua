-- Grants if the name is free and nobody waits or watches; else `acquire` has to look.
-- KEYS  1 held, see library.lua
-- ARGV  1 claim   2 " ttl mode limit holder metadata"   3 milliseconds that the key lives   4 now, or nothing
-- Answers the fence, or "fence acquired", or false.
if #ARGV[2] > PLAIN or string.find(ARGV[2], '\n', 1, true) then
--@limits
  local holder, metadata = string.match(ARGV[2], '^ %d+ [xs] %d+ (%S*) (.*)$')
  local refused = excess(holder or ' ', metadata or '')
  if refused then return redis.error_reply('ERR ' .. refused) end
end
local state = redis.pcall('GET', KEYS[1])
if state and (type(state) == 'table' or string.match(state, '^%d+()%-') ~= 17) then return false end
local time = redis.call('TIME')
local clock = time[1] .. string.sub('00000' .. time[2], -6)
local fence, lives = clock, ARGV[3]
if state and state >= clock then  -- the clock was set back: then the last number is remembered for longer
  fence = string.format('%016d', string.sub(state, 1, 16) + 1)
  if tonumber(fence) > LARGEST then return false end
  lives = math.ceil((fence - clock) / 1000) + lives
end
redis.call('SET', KEYS[1], fence .. '=' .. ARGV[1] .. ' ' .. (ARGV[4] or clock) .. ' ' .. fence .. ' ' .. clock .. ARGV[2],
  'PX', lives)
if fence == clock then return clock end
return fence .. ' ' .. clock
