-- ARGV  1 now or ""   2 claim   3 linger   4 heir
local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
local now = ARGV[1] == '' and wall or tonumber(ARGV[1])
local id, linger = ARGV[2], tonumber(ARGV[3])

local record = redis.call('HGET', KEYS[1], id)
if not record then return 0 end
if linger == 0 and redis.call('EXISTS', KEYS[2], KEYS[4], KEYS[5]) == 0 then  -- nobody waits or watches
  local ends, ended = string.match(record, '^(%d+) %d+ %d+ (%d)')
  if ended == '1' then return 0 end
  redis.call('HDEL', KEYS[1], id)
  return tonumber(ends) > now and 1 or 0
end

--@library

local hold = read_hold(record)
if hold.ended then return 0 end
local alive = hold.ends > now
if linger > 0 and alive then
  hold.ended, hold.ends = true, now + linger
  write_hold(id, hold)
  keep_for(hold.ends)
  return 1
end
if alive then
  look()
  end_hold(id)
  hand_over(ARGV[4])
  return 1
end
look()
return 0
