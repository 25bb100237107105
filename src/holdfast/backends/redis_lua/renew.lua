-- Many names: for KEYS[i] the claim, ttl and fence in ARGV[3i - 1 .. 3i + 1]; ARGV[1] is now or ""
local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
local now = ARGV[1] == '' and wall or tonumber(ARGV[1])
local clock = string.format('%.0f', now)
local answers = {}
for i = 1, #KEYS do
  local id, ttl, wanted = ARGV[3 * i - 1], tonumber(ARGV[3 * i]), ARGV[3 * i + 1]
  local record, kept = redis.call('HGET', KEYS[i], id), 0
  if record then
    local base, held_for, rest, fence, ended = string.match(record, '^(%d+) (%d+)( (%d+) %d+ (%d).*)$')
    local ends = base + held_for
    if ends > now and fence == wanted and ended == '0' then
      if now + ttl > ends then
        redis.call('HSET', KEYS[i], id, clock .. ' ' .. ARGV[3 * i] .. rest)
        local lives = math.ceil(ttl / 1000) + REMEMBER_MS  -- which is a day more than is promised
        if redis.call('PTTL', KEYS[i]) < lives - DAY / 1000 then redis.call('PEXPIRE', KEYS[i], lives) end
      end
      kept = 1
    end
  end
  answers[i] = kept
end
return answers
