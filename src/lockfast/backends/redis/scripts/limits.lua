-- Refuses a `holder` or `metadata` that is too large: all clients read them, and a client need not check its own.
-- Scripts that grant have this part inside a branch that short records do not enter: making these functions costs time.
local function depth(json)
  local deepest, level = 0, 0
  for bracket in string.gmatch(string.gsub(string.gsub(json, '\\.', ''), '"[^"]*"', ''), '[%[%]{}]') do
    level = level + ((bracket == '[' or bracket == '{') and 1 or -1)
    if level > deepest then deepest = level end
  end
  return deepest
end

-- Why these are refused, or nil. A holder id is percent-encoded.
local function excess(holder, metadata)
  local _, escaped = string.gsub(holder, '%%%x%x', '')
  local _, continued = string.gsub(holder, '%%[89ABab]%x', '')
  if #holder - 2 * escaped - continued > LONGEST_NAME then return 'a holder id has at most LONGEST_NAME characters' end
  if string.find(holder, '[%s%c]') or string.find(metadata, '\n', 1, true) then return 'a line end must be escaped' end
  if #metadata > LARGEST_METADATA then return 'metadata has at most LARGEST_METADATA characters' end
  if depth(metadata) > DEEPEST then return 'metadata is nested at most DEEPEST deep' end
end

local refused = excess(holder or ' ', metadata or '')
if refused then return redis.error_reply('ERR ' .. refused) end
