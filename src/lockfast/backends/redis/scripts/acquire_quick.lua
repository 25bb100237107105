-- Fast path of hand_over: grants if the name is free, without waiters or observers; else `acquire` decides.
-- KEYS  1 held   2 listed, but not in a cluster: see library.lua
-- ARGV  1 claim   2 " ttl mode limit holder metadata"   3 ttl of the key in milliseconds   4 now, or nothing
-- Returns the fence, or "fence acquired", or false.
--@record_limits
local found = redis.pcall('MGET', unpack(KEYS))
local state = found[1]
if found.err or (state and string.match(state, '^%d+()%-') ~= 17) then return false end
if found[2] then
--@note_name
end
local time = redis.call('TIME')
local clock = time[1] .. (#time[2] == 6 and time[2] or string.sub('00000' .. time[2], -6))
local fence, lives = clock, ARGV[3]
if state and state >= clock then  -- the clock was set back: then the key keeps the last number for longer
  fence = string.format('%016d', string.sub(state, 1, 16) + 1)
  if tonumber(fence) > MAX_NUMBER then return false end
  lives = math.ceil((fence - clock) / 1000) + lives
end
local record = fence .. '=' .. ARGV[1] .. ' ' .. (ARGV[4] or clock) .. ' ' .. fence .. ' ' .. clock .. ARGV[2]
if state then
  redis.call('SET', KEYS[1], record, 'PX', lives)
elseif not redis.call('SET', KEYS[1], record, 'PX', lives, 'NX') then  -- a key of another type, which MGET does not show
  return false
end
if fence == clock then return clock end
return fence .. ' ' .. clock
