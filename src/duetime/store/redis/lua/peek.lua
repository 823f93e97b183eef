-- Look at the first entries of lanes, to choose among them.
-- KEYS: after the fixed ones the lanes. ARGV: now, ahead, how many of each.
-- Returns now, and for each lane its entries with their positions.
local now = instant(ARGV[1])
local limit = string.format('%.0f', now + tonumber(ARGV[2]))
local heads = {now}
for i = FIXED + 1, #KEYS do
    heads[#heads + 1] = redis.call('ZRANGEBYSCORE', KEYS[i], '-inf', limit, 'WITHSCORES', 'LIMIT', 0, ARGV[3])
end
return heads
