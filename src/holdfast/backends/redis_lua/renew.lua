-- Many names: for KEYS[i] the claim, ttl and fence in ARGV[3i - 1 .. 3i + 1]; ARGV[1] is now or ""
local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
local now = ARGV[1] == '' and wall or tonumber(ARGV[1])
local answers = {}
for i = 1, #KEYS do
  local id, ttl, wanted = ARGV[3 * i - 1], tonumber(ARGV[3 * i]), ARGV[3 * i + 1]
  local record, kept = redis.call('HGET', KEYS[i], id), 0
  if record then
    local ends, fence, acquired, ended, rest = string.match(record, '^(%d+) (%d+) (%d+) (%d)(.*)$')
    if tonumber(ends) > now and fence == wanted and ended == '0' then
      local longer = math.max(tonumber(ends), now + ttl)
      local renewed = string.format('%.0f %s %s 0', longer, fence, acquired)
      redis.call('HSET', KEYS[i], id, renewed .. rest)
      redis.call('PEXPIRE', KEYS[i], math.ceil((longer - now) / 1000) + REMEMBER)
      kept = 1
    end
  end
  answers[i] = kept
end
return answers
