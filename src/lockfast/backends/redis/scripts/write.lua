-- KEYS  1 the cell: hash of v value, n version, f fence, w writer   ARGV  1 writer   2 "1" if there is a value   3 value
--       4 if_version or ""   5 fence or ""   See `_values.check_write`.
local stored = redis.pcall('HMGET', KEYS[1], 'v', 'n', 'f', 'w')
if stored.err and not string.find(stored.err, 'WRONGTYPE', 1, true) then redis.call('HMGET', KEYS[1], 'v') end
local function count(digits, largest)
  return #digits <= 16 and string.find(digits, '^%d+$') and tonumber(digits) <= largest and tonumber(digits)
end
local last, fence = count(stored[2] or '0', MAX_NUMBER), count(stored[3] or '0', MAX_NUMBER + 1)
local function clock()  -- above every version that the cell can have had
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
local whole = stored[1] and stored[2] and stored[3] and stored[4] or not (stored[1] or stored[3] or stored[4])
if stored.err or not (last and fence and whole) then  -- damaged, as `RedisBackend.read` defines it
  if ARGV[2] ~= '0' or ARGV[4] ~= '' or ARGV[5] ~= '' then return { 'damaged', 0, 0 } end
  stored, last, fence = {}, clock(), 0
end
local version = stored[1] and last or 0
if stored[4] == ARGV[1] then return { 'written', version, fence } end
if ARGV[5] ~= '' and tonumber(ARGV[5]) < fence then return { 'stale', version, fence } end
if ARGV[4] ~= '' and tonumber(ARGV[4]) ~= version then return { 'conflict', version, fence } end
if ARGV[5] ~= '' then fence = tonumber(ARGV[5]) end
if last > FAR_VERSION then last = clock() end  -- see `_values.last_version`
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[1])
  if last > 0 then  -- later versions go on above it
    redis.call('HSET', KEYS[1], 'n', string.format('%.0f', last))
    redis.call('PEXPIRE', KEYS[1], VERSION_TTL_MS)
  end
  return { 'written', 0, fence }
end
redis.call('HSET', KEYS[1], 'v', ARGV[3], 'n', string.format('%.0f', last + 1), 'f', string.format('%.0f', fence), 'w', ARGV[1])
redis.call('PERSIST', KEYS[1])
return { 'written', last + 1, fence }
