-- ARGV  1 now or ""   2 "1" to end every hold
local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
local now = ARGV[1] == '' and wall or tonumber(ARGV[1])

--@library

local breaks = ARGV[2] == '1'
if breaks then look() end
local found, queue = {}, {}
local rows = redis.call('HGETALL', KEYS[1])
for i = 1, #rows, 2 do
  if #rows[i] > 1 and string.byte(rows[i]) ~= 33 then
    local hold = read_hold(rows[i + 1])
    if hold.ends > now then
      found[#found + 1] = { rows[i], hold.holder, hold.fence, hold.mode, tonumber(hold.acquired), hold.ends - now,
        hold.metadata }
    end
  end
end
local places = {}
rows = redis.call('HGETALL', KEYS[3])
for i = 1, #rows, 2 do
  local waiter = read_waiter(rows[i])
  if waiter.alive > now then places[#places + 1] = waiter end
end
table.sort(places, function(a, b) return a.place < b.place end)
for _, waiter in ipairs(places) do queue[#queue + 1] = waiter.holder end
if breaks then
  for id in pairs(holds) do end_hold(id) end
  hand_over()
  tidy()
end
return { found, queue, wall }
