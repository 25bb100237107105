-- What is kept is read by all: a holder id and metadata are bounded here too, as `names` bounds them for our own clients.
-- Scripts that grant have this inside a branch, which what is PLAIN does not enter: to make these functions costs time.
local function depth(json)
  local deepest, level = 0, 0
  for bracket in string.gmatch(string.gsub(string.gsub(json, '\\.', ''), '"[^"]*"', ''), '[%[%]{}]') do
    level = level + ((bracket == '[' or bracket == '{') and 1 or -1)
    if level > deepest then deepest = level end
  end
  return deepest
end

-- Why these cannot be kept, or nothing. A holder id has escapes for all that is not plain.
local function excess(holder, metadata)
  local _, escaped = string.gsub(holder, '%%%x%x', '')
  local _, continued = string.gsub(holder, '%%[89ABab]%x', '')
  if #holder - 2 * escaped - continued > LONGEST_NAME then return 'a holder id has at most LONGEST_NAME characters' end
  if string.find(holder, '[%s%c]') or string.find(metadata, '\n', 1, true) then return 'a line end must be escaped' end
  if #metadata > LARGEST_METADATA then return 'metadata has at most LARGEST_METADATA characters' end
  if depth(metadata) > DEEPEST then return 'metadata is nested at most DEEPEST deep' end
end
