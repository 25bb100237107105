-- KEYS  see library.lua
-- ARGV  1 claim   2 after   3 address   4 now, or nothing
-- Returns { damage }; or { microseconds until a hold may expire or -1, "number fence +holder" or "number fence -" for each
-- change }.
local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
local now = tonumber(ARGV[4]) or wall
local id, after = ARGV[1], ARGV[2]

local frees = false
--@library

refresh()
if damage then
  save()
  return { damage }
end
local known = ask('HGET', KEYS[4], id)
if known and (tonumber(string.match(known, '^(%d+)')) or 0) <= now then known = false end
ask('HSET', KEYS[4], id, text(now + PRESENCE_US) .. ' ' .. ARGV[3])
redis.call('PEXPIRE', KEYS[4], WAITERS_TTL_MS)
if not observed then contended, observed, changed = true, true, true end
local changes = {}
if known and after ~= '0' then
  changes = redis.pcall('ZRANGEBYSCORE', KEYS[5], '(' .. after, '+inf')
  if changes.err then known = false end
  for _, change in ipairs(changes) do
    local number, fence, holder = string.match(change, '^(%d+) (%d+) ([+-]%S*)$')
    if not holder or not are_numbers(number, fence) then known = false end
  end
  if not known then redis.call('DEL', KEYS[5]) end  -- the observer begins again with what is true now
end
if not known or after == '0' then
  changes = {}
  local number = text(count_number())
  if rows then rows.read_all() end
  for _, hold in inside() do
    if not hold.ended then changes[#changes + 1] = number .. ' ' .. text(hold.fence) .. ' +' .. hold.holder end
  end
  if #changes == 0 then changes[1] = number .. ' 0 -' end
end
local soonest = end_of_holds(false)
save()
return { soonest and math.max(0, soonest - now) or -1, changes }
