-- Fast path of hand_over, as `acquire_quick`, with a fence that the client proposes, so that several servers can agree on
-- one in one round.
-- KEYS  1 held, see library.lua
-- ARGV  1 claim   2 " ttl mode limit holder metadata"   3 ttl of the key in milliseconds   4 the proposal in 16 digits
--       5 now, or nothing
-- Returns the fence, which is the proposal if that is above all that was given out here, or false if `acquire` has to decide.
--@record_limits
local state = redis.pcall('GET', KEYS[1])
if state and (type(state) == 'table' or string.match(state, '^%d+()%-') ~= 17) then return false end
local time = redis.call('TIME')
local clock = time[1] .. string.sub('00000' .. time[2], -6)
local fence, lives = ARGV[4], ARGV[3]
if state and state >= fence then fence = string.format('%016d', string.sub(state, 1, 16) + 1) end
if tonumber(fence) > MAX_NUMBER then return false end
if fence > clock then lives = math.ceil((fence - clock) / 1000) + lives end  -- a client's clock may be ahead of ours
redis.call('SET', KEYS[1], fence .. '=' .. ARGV[1] .. ' ' .. (ARGV[5] or clock) .. ' ' .. fence .. ' ' .. clock .. ARGV[2],
  'PX', lives)
return fence
