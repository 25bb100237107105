-- Adds to `names` what a scan has found, unless `listed` has ended since it began: then a name may be held that neither has.
-- KEYS  see listed.lua
-- ARGV  1 the token of `listed` when the scan began   then what is added, at most LISTED_AT_ONCE
-- Returns 1, or 0 if nothing was added.
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local added = {}
for i = 2, #ARGV do
  added[#added + 1] = 0
  added[#added + 1] = ARGV[i]
end
if type(redis.pcall('ZADD', KEYS[2], unpack(added))) == 'table' then return 0 end
return 1
