-- Note that a server has begun that may have forgotten its last writes: until every lease of before is over, nothing is handed out.
-- KEYS: the fixed ones. ARGV: now, incarnation, for how long to stay closed, epoch. Returns when it opens.
local now = instant(ARGV[1])
local known = redis.call('HMGET', META, 'incarnation', 'open_at')
if known[1] == ARGV[2] then return tonumber(known[2] or 0) end
write_without_memory()
local open_at = 0
if known[1] then
    open_at = math.max(now + tonumber(ARGV[3]), tonumber(known[2] or 0))
    local epoch = math.max(tonumber(redis.call('HGET', META, 'epoch') or 0) + 1, math.floor(now / 1000000) - tonumber(ARGV[4]))
    redis.call('HSET', META, 'epoch', string.format('%.0f', epoch))
end
redis.call('HSET', META, 'incarnation', ARGV[2], 'open_at', string.format('%.0f', open_at))
return open_at
