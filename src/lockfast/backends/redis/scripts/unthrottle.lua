-- KEYS  1 the limiter   ARGV  1 the moment that it must be booked up to   2 the moment that takes its place
if redis.pcall('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL') end
return 0
