-- KEYS  1 the limiter: "seconds nanoseconds" up to which it is booked. See `_values.book_permits`.
-- ARGV  1 now as "seconds nanoseconds" or ""   2 interval   3 burst   4 cost   5 patience
local seconds, nanos
if ARGV[1] == '' then
  local time = redis.call('TIME')
  seconds, nanos = tonumber(time[1]), time[2] * 1000
else
  seconds, nanos = string.match(ARGV[1], '^(%d+) (%d+)$')
  seconds, nanos = tonumber(seconds), tonumber(nanos)
end
local interval, full, cost = tonumber(ARGV[2]), ARGV[2] * ARGV[3], tonumber(ARGV[4])

-- Nanoseconds since the epoch do not fit into a double, but nanoseconds from now do.
local start = 0
local booked = redis.pcall('GET', KEYS[1])
if type(booked) == 'table' and not string.find(booked.err, 'WRONGTYPE', 1, true) then redis.call('GET', KEYS[1]) end
if booked then
  local s, n = string.match(type(booked) == 'string' and booked or '', '^(%d+) (%d+)$')
  start = s and math.max(0, (s - seconds) * 1000000000 + (n - nanos)) or MAX_BOOKED_NS
  if start >= MAX_BOOKED_NS then  -- damaged: all permits count as just used, so that none is given twice
    start = full
    booked = string.format('%.0f %.0f', seconds + math.floor((nanos + start) / 1000000000), (nanos + start) % 1000000000)
    redis.call('SET', KEYS[1], booked, 'PX', math.ceil(start / 1000000) + LIMITER_SPARE_MS)
  end
end
local after = start + interval * cost
local early = after - full
if early > tonumber(ARGV[5]) then
  return { 0, math.floor(math.max(0, full - start) / interval), early, booked or '0 0' }
end
local total = nanos + after
local ends = string.format('%.0f %.0f', seconds + math.floor(total / 1000000000), total % 1000000000)
redis.call('SET', KEYS[1], ends, 'PX', math.ceil(after / 1000000) + LIMITER_SPARE_MS)
return { 1, math.floor(math.max(0, full - after) / interval), math.max(0, early), ends }
