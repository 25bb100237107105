-- Which names are held, waited for or damaged, as far as that is known without a scan of all keys. While `listed` is there,
-- each script that makes a name other than free notes it in `names`, and nothing but this script removes it, if it is free.
-- A client that finds no `listed` begins; it scans all keys, and then adds what it found and what it looked for: see note.lua.
-- `listed` is there for LISTED_MS and not for longer, so that what was noted by no script is found by the next scan.
-- KEYS  1 listed: string, the token of the client that began
--       2 names: sorted set: "n" and a name, with "}" and "%" as in its keys; "m" and a prefix whose names are all there;
--         "t" and the token, without which a part of it was lost
-- ARGV  1 prefix   2 a token, in case this client begins   3 where the reply before this one ended, or ""
-- Returns { token } if names may be missing, "" if none can be noted; else { token, where this reply ended or "" if it is the
-- last one, and LISTED_AT_ONCE names at most }.
--@is_free
local token = redis.pcall('GET', KEYS[1])
local known = type(token) == 'string' and redis.pcall('ZMSCORE', KEYS[2], 't' .. token, 'm', 'm' .. ARGV[1]) or {}
if known.err or not known[1] then  -- nothing is noted, or a part of it was lost
  if redis.pcall('SET', KEYS[1], ARGV[2], 'PX', LISTED_MS).err then return { '' } end  -- its memory is full, or it is a replica
  redis.call('DEL', KEYS[2])
  redis.call('ZADD', KEYS[2], 0, 't' .. ARGV[2])
  redis.call('PEXPIRE', KEYS[2], 2 * LISTED_MS)
  return { ARGV[2] }
end
if not known[2] and not known[3] then return { token } end
local from = ARGV[3] == '' and '[n' .. ARGV[1] or '(' .. ARGV[3]
local found = redis.call('ZRANGE', KEYS[2], from, '(n' .. ARGV[1] .. '\255', 'BYLEX', 'LIMIT', 0, LISTED_AT_ONCE)
local answer = { token, #found == LISTED_AT_ONCE and found[#found] or '' }
for _, noted in ipairs(found) do
  local name = string.sub(noted, 2)
  if is_free('lockfast:{' .. name .. '}:held') then
    redis.pcall('ZREM', KEYS[2], noted)
  else
    answer[#answer + 1] = name
  end
end
return answer
