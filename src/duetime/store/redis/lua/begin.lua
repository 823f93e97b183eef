-- Note that a server has begun that may have forgotten its last writes: until every lease of before is over, nothing is handed out.
-- KEYS: the fixed ones. ARGV: now, incarnation, where the server listens, whether it keeps every write, whether there is only this server,
-- first epoch, the usual lease. Returns when it opens.
local now = instant(ARGV[1])
local known = redis.call('HMGET', META, 'incarnation', 'open_at', 'server', 'lease')
if known[1] == ARGV[2] then return tonumber(known[2] or 0) end
write_without_memory()
local open_at = 0
if known[1] then
    local forgot_nothing = ARGV[4] == '1' and (ARGV[5] == '1' or known[3] == ARGV[3])
    local closed = forgot_nothing and 0 or 1.2 * tonumber(known[4] or ARGV[7])
    open_at = math.max(math.ceil(now + closed), tonumber(known[2] or 0))
    local epoch = math.max(tonumber(redis.call('HGET', META, 'epoch') or 0) + 1, math.floor(now / 1000000) - tonumber(ARGV[6]))
    redis.call('HSET', META, 'epoch', string.format('%.0f', epoch))
end
redis.call('HSET', META, 'incarnation', ARGV[2], 'server', ARGV[3], 'open_at', string.format('%.0f', open_at))
return open_at
