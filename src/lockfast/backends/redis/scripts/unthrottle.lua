-- KEYS  1 the limiter   ARGV  1 what it must be booked up to   2 what it was booked up to before
if redis.pcall('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL') end
return 0
