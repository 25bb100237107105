-- Renews many claims. Each name is read and written once, however many of its claims are renewed.
-- KEYS  `held` of the name of each claim, see library.lua; those of one name in a row
-- ARGV  1 now or ""   then for each claim: claim, ttl, fence. A claim that comes twice comes in a row, its longest ttl first.
-- Returns 1 for each claim that still holds under its fence, else 0.
local time = redis.call('TIME')
local now = tonumber(ARGV[1]) or time[1] * 1000000 + time[2]
local clock = string.format('%d', now)
local keys, args, call, sub = KEYS, ARGV, redis.call, string.sub  -- locals are faster
local answers = {}
local state, stop, longest  -- of the name: its record or false, where the last claim was found, the longest ttl
local stops, texts, rests = {}, {}, {}  -- where a renewed claim ends; by that: what is put in there, and in place of what

local function read(key)
  state, stop, longest = redis.pcall('GET', key), 18, 0
  if type(state) == 'table' then
    if not string.find(state.err, 'WRONGTYPE', 1, true) then call('GET', key) end  -- to fail with the same error
    state = false
  elseif state and (string.match(state, '^%d+()[+*=]') ~= 17 or sub(state, 1, 16) + 0 > MAX_NUMBER) then
    state = false
  end
end

-- Where the claim ends at the beginning of a line: the metadata of another hold may contain the same. The claims of a client
-- are likely to be in the order of its request.
local function find(id)
  if sub(state, 18, 18 + #id) == id .. ' ' then return 18 + #id end
  local line = '\n' .. id .. ' '
  return select(2, string.find(state, line, stop, true)) or select(2, string.find(state, line, 18, true))
end

local function write(key)
  if stops[2] then
    table.sort(stops)
    local parts, copied = {}, 1
    for place, each in ipairs(stops) do
      parts[place] = sub(state, copied, each) .. texts[each]
      copied = rests[each]
    end
    state = table.concat(parts) .. sub(state, copied)
    stops = {}
  else
    state = sub(state, 1, stops[1]) .. texts[stops[1]] .. sub(state, rests[stops[1]])
    stops[1] = nil
  end
  call('SET', key, state, 'KEEPTTL')
  local lives = math.ceil(longest / 1000) + FENCE_TTL_MS
  if call('PTTL', key) < lives - DAY_US / 1000 then call('PEXPIRE', key, lives) end
end

for i = 1, #keys do
  local id, ttl, fence = args[3 * i - 1], args[3 * i], args[3 * i + 1]
  if keys[i] ~= keys[i - 1] then read(keys[i]) end
  local found, kept = state and find(id), 0
  if found then
    local base, its_fence, acquired, held_for, rest = string.match(state, '^(%d+) (%d+) (%d+) (%d+)() [xs] %d+ %S* ', found + 1)
    local ends = base and held_for + 0 <= MAX_TTL_US and base + held_for or 0  -- else the line cannot be read
    if ends > now and its_fence == fence then
      if now + ttl > ends and found ~= stop then
        stops[#stops + 1] = found
        texts[found], rests[found] = clock .. ' ' .. fence .. ' ' .. acquired .. ' ' .. ttl, rest
        longest = math.max(longest, ttl)
      end
      kept = 1
    end
    stop = found
  end
  answers[i] = kept
  if stops[1] and keys[i] ~= keys[i + 1] then write(keys[i]) end
end
return answers
