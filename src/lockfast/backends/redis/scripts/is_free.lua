-- Whether the name with this `held` is free: only its last number is left, or nothing.
local function is_free(held)
  local start = redis.pcall('GETRANGE', held, 0, 16)
  if start == '' then return redis.call('EXISTS', held) == 0 end
  local number = type(start) == 'string' and string.match(start, '^(%d+)%-$')
  return number and #number == 16 and tonumber(number) <= MAX_NUMBER
end
