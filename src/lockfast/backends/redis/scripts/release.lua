-- KEYS  see library.lua
-- ARGV  1 linger   2 successor   3 claim   4 now, or nothing
-- Returns 1 if it held until now or no other claim can have held since, 2 if so and others hold, wait or observe, 0 if not; the
-- damage, if that may have been its hold.
local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
local now = tonumber(ARGV[4]) or wall
local linger, id = tonumber(ARGV[1]), ARGV[3]

-- Fast path of hand_over for a contended mutex: the claim holds alone, the first waiter is alive and exclusive, there is no
-- observer. Everything else is left to the full script below. A plain `find` takes a fraction of what a pattern takes.
-- No other claim can have held while the record is the claim's. As in the quick script, its end counts only by a test's clock.
local state = redis.pcall('GET', KEYS[1])
local after = 18 + #id
if linger == 0 and ARGV[2] == '' and type(state) == 'string' and state:sub(17, after) == '+' .. id .. ' '
    and not state:find('\n', after, true) and (tonumber(state:sub(1, 16)) or MAX_NUMBER) <= wall then
  local held = 2
  if ARGV[4] then
    local base, ttl = state:match('^(%d+) %d+ %d+ (%d+) ', after + 1)
    held = base and (base + ttl > now and 2 or 0)
  end
  local first = redis.pcall('ZRANGE', KEYS[2], '0', '0')[1]
  local waiter = first and redis.pcall('HGET', KEYS[3], first)
  local alive_ends = held and type(waiter) == 'string' and waiter:find(' ', 1, true)
  local place_ends = alive_ends and waiter:find(' x 0 ', alive_ends, true)
  local address_ends = place_ends and waiter:find(' ', place_ends + 5, true)
  if address_ends then
    local alive, address = tonumber(waiter:sub(1, alive_ends)), waiter:sub(place_ends + 5, address_ends - 1)
    local its_ttl, rest = waiter:match('^(%d+) ()%S* ', address_ends + 1)
    if alive and alive > now and alive <= now + PRESENCE_US and its_ttl and #its_ttl <= 16 and tonumber(its_ttl) <= MAX_TTL_US then
      local silent = now - alive + PRESENCE_US
      if address:find(CONFIRMS, 1, true) then
        local times = waiter:match('^%d+ %d+ x ')
        if times and #times <= 36 and tonumber(waiter:sub(alive_ends, place_ends)) <= MAX_NUMBER
            and (redis.pcall('PUBLISH', address, first) ~= 0 or address:find(CLUSTERED, 1, true)) then
          redis.call('ZREM', KEYS[2], first)
          redis.call('SET', KEYS[1], state:sub(1, 17) .. '?' .. first .. string.format(' %d ', now + GRACE_US)
            .. times:sub(1, -2), 'PX', FENCE_TTL_MS)
          return held
        end
      elseif silent * 4 <= tonumber(its_ttl) and silent <= RECENT_US
          and (redis.pcall('PUBSUB', 'NUMSUB', address)[2] or 0) > 0 then
        local clock = string.format('%016d', wall)
        local fence = state:sub(1, 16) < clock and clock or string.format('%016d', wall + 1)
        redis.call('ZREM', KEYS[2], first)
        redis.call('HDEL', KEYS[3], first)
        redis.call('SET', KEYS[1], fence .. '+' .. first .. string.format(' %d ', now) .. fence .. ' ' .. clock .. ' '
          .. its_ttl .. ' x 0 ' .. waiter:sub(rest), 'PX', math.ceil(its_ttl / 1000) + FENCE_TTL_MS)
        redis.pcall('PUBLISH', address, first .. ' ' .. fence .. ' ' .. clock)
        return held
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
