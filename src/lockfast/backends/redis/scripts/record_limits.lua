-- The check of `limits` for a record in ARGV[2], as the quick scripts get it.
if #ARGV[2] > PLAIN or string.find(ARGV[2], '\n', 1, true) then
  local holder, metadata = string.match(ARGV[2], '^ %d+ [xs] %d+ (%S*) (.*)$')
--@limits
end
