-- Note how long a lease a worker has, so that a server which forgets knows how long to stay closed.
-- KEYS: the fixed ones. ARGV: now, lease, the usual one, whether a note of this lease will outlast the server.
-- Returns now, and whether the note must outlast it before the lease may count: a server without a note takes the usual one.
local now, lease = instant(ARGV[1]), tonumber(ARGV[2])
local known = redis.call('HMGET', META, 'lease', 'lease_kept')
write_without_memory()
local kept = tonumber(known[2] or ARGV[3])
if not known[1] then kept = math.min(lease, kept) end
if ARGV[4] == '1' then kept = math.max(kept, lease) end
redis.call('HSET', META, 'lease', string.format('%.0f', math.max(lease, tonumber(known[1] or 0))), 'lease_kept', string.format('%.0f', kept))
return {now, lease > kept and 1 or 0}
