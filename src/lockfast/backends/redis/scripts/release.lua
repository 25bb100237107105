-- KEYS  see library.lua
-- ARGV  1 linger   2 successor   3 claim   4 now, or nothing
-- Returns 1 if it held until now, 2 if it did and others hold, wait or observe, 0 if it did not hold; the damage, if that may
-- have been its hold.
local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
local now = tonumber(ARGV[4]) or wall
local linger, id = tonumber(ARGV[1]), ARGV[3]

-- Fast path of hand_over for a contended mutex: the claim holds alone, the first waiter is alive and exclusive, there is no
-- observer. Everything else is left to the full script below.
local state = redis.pcall('GET', KEYS[1])
local after = 18 + #id
if linger == 0 and ARGV[2] == '' and type(state) == 'string' and string.sub(state, 17, after) == '+' .. id .. ' '
    and not string.find(state, '\n', after, true) and (tonumber(string.sub(state, 1, 16)) or MAX_NUMBER) <= wall then
  local first = redis.pcall('ZRANGE', KEYS[2], 0, 0)[1]
  local waiter = first and redis.pcall('HGET', KEYS[3], first)
  local base, ttl = string.match(state, '^(%d+) %d+ %d+ (%d+) ', after + 1)
  if base and type(waiter) == 'string' then
    local alive, place, mode, address, its_ttl, holder_and_metadata =
      string.match(waiter, '^(%d+) (%d+) (%a) %d+ (%S*) (%d+) (%S* .*)$')
    if mode == 'x' and tonumber(alive) > now and tonumber(alive) <= now + PRESENCE_US
        and math.max(#alive, #place, #its_ttl) <= 16 and tonumber(place) <= MAX_NUMBER and tonumber(its_ttl) <= MAX_TTL_US then
      if string.find(address, CONFIRMS, 1, true) then
        if redis.pcall('PUBLISH', address, first) ~= 0 or string.find(address, CLUSTERED, 1, true) then
          redis.call('ZREM', KEYS[2], first)
          redis.call('SET', KEYS[1], string.sub(state, 1, 17) .. '?' .. first .. string.format(' %d ', now + GRACE_US) .. alive
            .. ' ' .. place .. ' x', 'PX', FENCE_TTL_MS)
          return base + ttl > now and 2 or 0
        end
      elseif (now - alive + PRESENCE_US) * 4 <= tonumber(its_ttl) and now - alive + PRESENCE_US <= RECENT_US
          and (redis.pcall('PUBSUB', 'NUMSUB', address)[2] or 0) > 0 then
        local fence = string.format('%016d', math.max(string.sub(state, 1, 16) + 1, wall))
        local clock = string.format('%d', wall)
        redis.call('ZREM', KEYS[2], first)
        redis.call('HDEL', KEYS[3], first)
        redis.call('SET', KEYS[1], fence .. '+' .. first .. string.format(' %d ', now) .. fence .. ' ' .. clock .. ' '
          .. its_ttl .. ' x 0 ' .. holder_and_metadata, 'PX', math.ceil(its_ttl / 1000) + FENCE_TTL_MS)
        redis.pcall('PUBLISH', address, first .. ' ' .. fence .. ' ' .. clock)
        return base + ttl > now and 2 or 0
      end
    end
  end
end

local frees = true
--@library

refresh()
local hold, unread = hold_of(id)
local held = hold and not hold.ended
if held and linger > 0 then
  hold.ended, hold.base, hold.ttl, changed = true, now, linger, true
elseif held then
  end_hold(id)
  hand_over(ARGV[2])
end
save()
if not held and (damage or unread) then return damage or unread end
return held and ((contended or rows or next(holds)) and 2 or 1) or 0
