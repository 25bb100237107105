-- Fast path of hand_over: ends the claim's hold if it is the only one, without waiters or observers, so that there is none to
-- hand over to; else `release` decides. Of the record only the last number and tombstones are kept.
-- KEYS  1 held, see library.lua
-- ARGV  1 claim   2 now, or nothing
-- Returns 1 if no other claim can have held since, 0 if it did not hold or had expired at `now`, false if `release` decides.
local state = redis.pcall('GET', KEYS[1])
if not state then return 0 end
if type(state) == 'table' then return false end
local after = 18 + #ARGV[1]
if string.sub(state, 17, after) ~= '=' .. ARGV[1] .. ' ' then
  --@record_limits
  if string.match(state, '^%d+()[-=]') ~= 17 or tonumber(string.sub(state, 1, 16)) > MAX_NUMBER then return false end
  local unknown = string.gsub('\n' .. string.sub(state, 18), '\n!%S+ %d+', '')
  return (unknown == '' or unknown == '\n') and 0
end
local others, kept = string.find(state, '\n', after, true), '-'
if others then
  if string.find(state, '\n[^!]', others) then return false end
  kept = '=' .. string.sub(state, others + 1)
end
local done = redis.pcall('SET', KEYS[1], string.sub(state, 1, 16) .. kept, 'KEEPTTL')
if done.err then redis.call('DEL', KEYS[1]) end  -- the server's memory is full, and allows only this
if ARGV[2] then
  local base, ttl = string.match(state, '^(%d+) %d+ %d+ (%d+)', after + 1)
  return base and base + ttl > ARGV[2] + 0 and 1 or 0
end
return 1
