-- KEYS  see library.lua
-- ARGV  1 "1" to end every hold   2 now, or nothing
-- Returns { { claim, holder, fence, mode, acquired, microseconds left, metadata } for each hold, holder ids of the waiters,
-- wall clock, damage or "" }. Changes nothing unless it ends holds.
local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
local now = tonumber(ARGV[2]) or wall

local frees = true
--@library

local breaks = ARGV[1] == '1'
if breaks then refresh() else read_state() end
if damage == 'all' then contended, observed = true, redis.call('EXISTS', KEYS[4]) == 1 end
local found, places, queue, was = {}, {}, {}, nil
for id, hold in inside() do
  if hold.ends > now then
    found[#found + 1] = { id, hold.holder, hold.fence, hold.mode, tonumber(hold.acquired), hold.ends - now,
      hold.metadata }
  end
end
local waiting = contended and redis.pcall('HKEYS', KEYS[3]) or {}
if waiting.err and not string.find(waiting.err, 'WRONGTYPE', 1, true) then redis.call('HKEYS', KEYS[3]) end
for _, id in ipairs(waiting) do
  local waiter = read_waiter(id)
  if waiter and waiter.alive > now then places[#places + 1] = waiter end
end
table.sort(places, function(a, b) return a.place < b.place end)
for _, waiter in ipairs(places) do queue[#queue + 1] = waiter.holder end
if breaks then
  for _, hold in ipairs(found) do end_hold(hold[1]) end
  if damage then
    exclusive = damage == 'all' and 0 or exclusive - #unreadable
    was, damage, unreadable = damage, nil, {}
    if was == 'all' then redis.call('DEL', KEYS[1]) end
    count_number()
    record_change(0, nil)
  end
  hand_over()
  save()
end
return { found, queue, wall, was or damage or '' }
