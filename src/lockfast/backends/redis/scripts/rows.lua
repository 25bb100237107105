-- The form of a name with many holds, all shared: each is a row of KEYS[7], and its end is in KEYS[8], so that a step reads
-- and writes only those that it is about. A row is "ttl fence acquired holder metadata", with "~" before it if it lingers.
-- One that cannot be read takes its permit until its end.
-- Part of `library`, inside a branch that other names do not enter: making these functions costs time.
rows = {}

-- False if the row cannot be read.
local function add(id, row, ends)
  local ended, ttl, fence, acquired, holder, metadata = string.match(row or '', '^(~?)(%d+) (%d+) (%d+) (%S*) (.*)$')
  if not are_numbers(ttl, fence, acquired) or tonumber(ttl) > MAX_TTL_US or ends > MAX_NUMBER then return false end
  add_hold(id, { base = ends - ttl, ttl = tonumber(ttl), fence = tonumber(fence), acquired = acquired, ended = ended == '~',
    mode = 's', limit = rows.limit, holder = holder, metadata = metadata, ends = ends, row = row, row_ends = ends })
  return true
end

-- As `hold_of`.
function rows.read(id)
  local ends = tonumber(ask('ZMSCORE', KEYS[8], id)[1])
  if not ends then return nil end
  if not add(id, ask('HGET', KEYS[7], id), ends) then return nil, 'some' end
  return holds[id]
end

-- How many cannot be read.
function rows.read_all()
  local unread, found = 0, ask('ZRANGE', KEYS[8], 0, -1, 'WITHSCORES')
  for from = 1, #found, 2 * MAX_WORDS do
    local some = {}
    for i = from, math.min(#found, from + 2 * MAX_WORDS - 1), 2 do some[#some + 1] = found[i] end
    for i, row in ipairs(ask('HMGET', KEYS[7], unpack(some))) do
      if not holds[some[i]] and not add(some[i], row, tonumber(found[from + 2 * i - 1])) then unread = unread + 1 end
    end
  end
  return unread
end

function rows.drop()
  redis.call('DEL', KEYS[7], KEYS[8])
  rows = nil
end

function rows.delete(id)
  redis.call('ZREM', KEYS[8], id)
  redis.call('HDEL', KEYS[7], id)
  rows.count = rows.count - 1
  if rows.count == 0 then rows.drop() end
end

local function write_words(command, key, list)
  for from = 1, #list, MAX_WORDS do write(command, key, unpack(list, from, math.min(#list, from + MAX_WORDS - 1))) end
end

-- Write those that have changed; when the last of all ends.
function rows.save()
  local new_rows, new_ends = {}, {}
  for id, hold in inside() do
    local ends = hold.base + hold.ttl
    local row = string.format('%s%d %d %s %s %s', hold.ended and '~' or '', hold.ttl, hold.fence, hold.acquired, hold.holder,
      hold.metadata)
    if row ~= hold.row then
      new_rows[#new_rows + 1] = id
      new_rows[#new_rows + 1] = row
    end
    if ends ~= hold.row_ends then
      new_ends[#new_ends + 1] = text(ends)
      new_ends[#new_ends + 1] = id
    end
  end
  write_words('HSET', KEYS[7], new_rows)
  write_words('ZADD', KEYS[8], new_ends)
  return tonumber(redis.call('ZRANGE', KEYS[8], -1, -1, 'WITHSCORES')[2])
end

-- What `#` says, if it can be read.
function rows.begin(line)
  local limit, latest = string.match(line, '^#(%d+) (%d+)$')
  local count = are_numbers(limit, latest) and ask('ZCARD', KEYS[8]) or 0
  if count == 0 then return false end
  rows.limit, rows.latest, rows.count = limit, tonumber(latest), count
  take_room('s', count)
  return true
end

-- Lines become rows if they are many, all shared.
function rows.take_over()
  local count, limit = 0, nil
  for _, hold in inside() do
    if hold.mode == 'x' or hold.limit ~= (limit or hold.limit) then return false end
    count, limit = count + 1, hold.limit
  end
  if count <= MANY_HOLDS then return false end
  redis.call('DEL', KEYS[7], KEYS[8])
  rows.limit, rows.count = limit, count
  return true
end
