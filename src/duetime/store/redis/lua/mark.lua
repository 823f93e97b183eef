-- Write something, so that whoever waits for this write has waited for all earlier ones of anybody.
-- KEYS: the fixed ones. ARGV: now. Returns now, and which start of which server has what stands here.
local now = instant(ARGV[1])
write_without_memory()
redis.call('HINCRBY', META, 'marks', 1)
return {now, redis.call('HGET', META, 'incarnation')}
