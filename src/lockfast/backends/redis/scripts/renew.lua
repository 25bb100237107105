-- Renews many names, one claim of each.
-- KEYS  `held` of each name, see library.lua
-- ARGV  1 now or ""   then for each: claim, ttl, fence
-- Returns 1 for each claim that still holds under its fence, else 0.
local time = redis.call('TIME')
local now = tonumber(ARGV[1]) or time[1] * 1000000 + time[2]
local clock = string.format('%d', now)
local answers = {}
for i = 1, #KEYS do
  local id, ttl, fence = ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1]
  local state = redis.pcall('GET', KEYS[i])
  local kept = 0
  local stop  -- where the claim ends at the beginning of a line: the metadata of another hold may contain the same
  if type(state) == 'table' and not string.find(state.err, 'WRONGTYPE', 1, true) then redis.call('GET', KEYS[i]) end
  if type(state) == 'string' and string.match(state, '^%d+()[+*=]') == 17
      and string.sub(state, 1, 16) + 0 <= MAX_NUMBER then
    if string.sub(state, 18, 18 + #id) == id .. ' ' then stop = 18 + #id
    else stop = select(2, string.find(state, '\n' .. id .. ' ', 18, true)) end
  end
  if stop then
    local base, its_fence, acquired, held_for, rest = string.match(state, '^(%d+) (%d+) (%d+) (%d+)() [xs] %d+ %S* ', stop + 1)
    local ends = base and held_for + 0 <= MAX_TTL_US and base + held_for or 0  -- else the line cannot be read
    if ends > now and its_fence == fence then
      if now + ttl > ends then
        redis.call('SET', KEYS[i], string.sub(state, 1, stop) .. clock .. ' ' .. fence .. ' ' .. acquired .. ' ' .. ttl
          .. string.sub(state, rest), 'KEEPTTL')
        local lives = math.ceil(ttl / 1000) + FENCE_TTL_MS
        if redis.call('PTTL', KEYS[i]) < lives - DAY_US / 1000 then redis.call('PEXPIRE', KEYS[i], lives) end
      end
      kept = 1
    end
  end
  answers[i] = kept
end
return answers
