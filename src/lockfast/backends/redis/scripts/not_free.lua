-- Which names may be held, waited for or damaged. Most that a server keeps are free and have only their last number left, so
-- that `list` need not ask for each of them.
-- KEYS  `held` of each name, see library.lua
-- Returns the positions of those that are not free, from 1 on.
--@is_free
local found = {}
for place, held in ipairs(KEYS) do
  if not is_free(held) then found[#found + 1] = place end
end
return found
