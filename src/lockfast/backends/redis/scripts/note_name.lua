-- Notes the name of KEYS[1], which is no longer free, for clients that list names: see listed.lua. Not in a cluster.
if redis.pcall('ZADD', LISTED_NAMES, 0, 'n' .. string.sub(KEYS[1], 11, -7)) == 1 then
  redis.pcall('PEXPIRE', LISTED_NAMES, 2 * LISTED_MS)
end
