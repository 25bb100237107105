-- KEYS  see library.lua
-- ARGV  1 "holders"; "all" for the waiters too; "break" to end every hold besides   2 now, or nothing
-- Returns { { claim, holder, fence, mode, acquired, microseconds left, metadata } for each hold, the records of the waiters in
-- no order, wall clock, now, damage or "" }. Changes nothing unless it ends holds. One command reads all waiters, and the client
-- sorts them: there may be thousands, and all other clients wait meanwhile.
local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
local now = tonumber(ARGV[2]) or wall

local frees = true
--@library

local breaks = ARGV[1] == 'break'
if breaks then expire() else read_state() end
local unread = rows and rows.read_all() or 0
if unread > 0 then damage = damage or 'some' end
if damage == 'all' then contended, observed = true, redis.call('EXISTS', KEYS[4]) == 1 end
local found, was = {}, nil
for id, hold in inside() do
  if hold.ends > now then
    found[#found + 1] = { id, hold.holder, hold.fence, hold.mode, tonumber(hold.acquired), hold.ends - now,
      hold.metadata }
  end
end
local waiters = contended and ARGV[1] ~= 'holders' and redis.pcall('HVALS', KEYS[3]) or {}
if waiters.err then
  if not string.find(waiters.err, 'WRONGTYPE', 1, true) then redis.call('HVALS', KEYS[3]) end  -- to fail with the same error
  waiters = {}
end
for place, waiter in ipairs(waiters) do
  if #waiter > PLAIN then waiters[place] = string.match(waiter, '^%d+ %d+ [xs] %d+ %S* %d+ %S* ') or '' end  -- no metadata
end
if breaks then
  if rows then
    rows.drop()
    take_room('s', -unread)
  end
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
return { found, waiters, wall, now, was or damage or '' }
