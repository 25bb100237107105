-- KEYS  see library.lua
-- ARGV  1 linger   2 heir   3 now or ""   4 claim
-- Answers 1 if it held until now.
local id, linger = ARGV[4], tonumber(ARGV[1])
local found = redis.call('HMGET', KEYS[1], id, 'q')
local record = found[1]
if not record then return 0 end
local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
local now = ARGV[3] == '' and wall or tonumber(ARGV[3])

if linger == 0 and not found[2] then  -- nobody waits or watches
  local base, ttl, ended = string.match(record, '^(%d+) (%d+) %d+ %d+ (%d)')
  if ended == '1' then return 0 end
  redis.call('HDEL', KEYS[1], id)
  return base + ttl > now and 1 or 0
end

--@library

if read_hold(record).ended then return 0 end
look()
local hold = holds[id]
local alive = hold ~= nil
if linger > 0 and alive then
  hold.ended, hold.base, hold.ttl = true, now, linger
  write_hold(id, hold)
  remember()
elseif alive then
  end_hold(id)
  hand_over(ARGV[2])
end
tidy()
return alive and 1 or 0
