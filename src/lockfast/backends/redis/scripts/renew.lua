-- Renews many claims. Each name is read and written once, however many of its claims are renewed; of rows only theirs are.
-- KEYS  `held` of the name of each claim, see library.lua; those of one name in a row.
--       Then `rows` and `ends` of each name whose claims are shared, in the same order
-- ARGV  1 now or ""   then for each claim: claim, ttl, fence. A claim that comes twice comes in a row, its longest ttl first.
-- Returns 1 for each claim that still holds under its fence, else 0; false if the keys do not say.
local time = redis.call('TIME')
local now = tonumber(ARGV[1]) or time[1] * 1000000 + time[2]
local clock = string.format('%d', now)
local keys, args, call, sub = KEYS, ARGV, redis.call, string.sub  -- locals are faster
local claims = (#args - 1) / 3
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

-- How long the key lives from now on, if that has changed.
local function save(key)
  call('SET', key, state, 'KEEPTTL')
  local lives = math.ceil(longest / 1000) + FENCE_TTL_MS
  if call('PTTL', key) >= lives - DAY_US / 1000 then return nil end
  call('PEXPIRE', key, lives)
  return lives
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
  save(key)
end

-- Nil if the key has another type.
local function ask(command, key, ids)
  local answer = redis.pcall(command, key, unpack(ids))
  if not answer.err then return answer end
  if not string.find(answer.err, 'WRONGTYPE', 1, true) then call(command, key, unpack(ids)) end  -- to fail with the same error
end

-- Claims of a name whose holds are rows, and not more than one command takes.
local function renew_rows(first, last, rows, ends)
  local ids, new_rows, new_ends = {}, {}, {}
  for i = first, last do ids[#ids + 1] = args[3 * i - 1] end
  local found, its_ends = ask('HMGET', rows, ids) or {}, ask('ZMSCORE', ends, ids) or {}
  for n, id in ipairs(ids) do
    local i = first + n - 1
    local ttl, fence, row, over = args[3 * i], args[3 * i + 1], found[n] or '', tonumber(its_ends[n] or 0)
    local held_for, its_fence = string.match(row, '^(%d+) (%d+) ')
    answers[i] = its_fence == fence and over > now and 1 or 0
    if answers[i] == 1 and now + ttl > over and id ~= ids[n - 1] then
      new_ends[#new_ends + 1] = string.format('%d', now + ttl)
      new_ends[#new_ends + 1] = id
      if held_for ~= ttl then
        new_rows[#new_rows + 1] = id
        new_rows[#new_rows + 1] = ttl .. sub(row, #held_for + 1)
      end
      longest = math.max(longest, ttl)
    end
  end
  if new_ends[1] then call('ZADD', ends, unpack(new_ends)) end
  if new_rows[1] then call('HSET', rows, unpack(new_rows)) end
end

-- The last number stays; `latest` is now, unless the clock was set back: the other rows are still to be read.
local function write_rows(key, rows, ends)
  local before, latest, after = string.match(state, '^(%d+[+*=]#%d+ )(%d+)()')
  if latest and latest + 0 < now then state = before .. clock .. sub(state, after) end
  local lives = save(key)
  if lives then
    call('PEXPIRE', rows, lives)
    call('PEXPIRE', ends, lives)
  end
end

local first, rows, ends  -- of the name: its first claim that was not looked for; its other keys, if they are there
local others = claims + 1
for i = 1, claims do
  local id, ttl, fence = args[3 * i - 1], args[3 * i], args[3 * i + 1]
  local ends_here = keys[i] ~= keys[i + 1]
  if keys[i] ~= keys[i - 1] then
    read(keys[i])
    first, rows = i, nil
    if keys[others] and sub(keys[others], 1, -5) == sub(keys[i], 1, -5) then
      rows, ends, others = keys[others], keys[others + 1], others + 2
    end
  end
  if state and sub(state, 18, 18) == '#' then
    answers[i] = false
    if rows and (ends_here or 2 * (i - first + 1) == MAX_WORDS) then
      renew_rows(first, i, rows, ends)
      first = i + 1
    end
    if ends_here and longest > 0 then write_rows(keys[i], rows, ends) end
  else
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
    if stops[1] and ends_here then write(keys[i]) end
  end
end
return answers
