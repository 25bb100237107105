-- Fast path of hand_over, as `acquire_quick`, with a fence that the client proposes, so that several servers can agree on
-- one in one round. Tombstones of other claims are in no claim's way; those that have expired are deleted.
-- KEYS  1 held   2 listed: see library.lua
-- ARGV  1 claim   2 " ttl mode limit holder metadata"   3 ttl of the key in milliseconds   4 the proposal in 16 digits
--       5 now, or nothing
-- Returns the fence, which is the proposal if that is above all that was given out here, or false if `acquire` has to decide.
--@record_limits
local found = redis.pcall('MGET', unpack(KEYS))
local state = found[1]
local tombstones = ''
if found.err then return false end
if state and string.match(state, '^%d+()%-') ~= 17 then
  tombstones = string.match(state, '^%d+()=!') == 17 and '\n' .. string.sub(state, 18)
  if not tombstones or string.gsub(tombstones, '\n!%S+ %d+', '') ~= ''
      or string.find(tombstones, '!' .. ARGV[1] .. ' ', 1, true) then return false end
end
if found[2] then
--@note_name
end
local time = redis.call('TIME')
local clock = time[1] .. string.sub('00000' .. time[2], -6)
if tombstones ~= '' then
  local now = tonumber(ARGV[5] or clock)
  tombstones = string.gsub(tombstones, '\n!%S+ (%d+)', function(ends) if tonumber(ends) <= now then return '' end end)
end
local fence, lives = ARGV[4], ARGV[3]
if state and state >= fence then fence = string.format('%016d', string.sub(state, 1, 16) + 1) end
if tonumber(fence) > MAX_NUMBER then return false end
if fence > clock then lives = math.ceil((fence - clock) / 1000) + lives end  -- a client's clock may be ahead of ours
local record = fence .. '=' .. ARGV[1] .. ' ' .. (ARGV[5] or clock) .. ' ' .. fence .. ' ' .. clock .. ARGV[2] .. tombstones
if state then
  redis.call('SET', KEYS[1], record, 'PX', lives)
elseif not redis.call('SET', KEYS[1], record, 'PX', lives, 'NX') then  -- a key of another type, which MGET does not show
  return false
end
return fence
