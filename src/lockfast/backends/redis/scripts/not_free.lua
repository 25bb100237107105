-- Which names may be held, waited for or damaged. Most that a server keeps are free and have only their last number left, so
-- that `list` need not ask for each of them.
-- KEYS  `held` of each name, see library.lua
-- Returns the positions of those that are not free, from 1 on.
local found = {}
for place, key in ipairs(KEYS) do
  local start = redis.pcall('GETRANGE', key, 0, 16)
  local number = type(start) == 'string' and string.match(start, '^(%d+)%-$')
  if not number or #number ~= 16 or tonumber(number) > MAX_NUMBER then found[#found + 1] = place end
end
return found
