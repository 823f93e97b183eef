-- Count a beat of a worker and return what it has.
-- KEYS: after the fixed ones the set of what the worker runs. ARGV: now, worker, incarnation.
-- Returns now, versions of gates and targets, whether it drains, and id and facts of each attempt; only now if it is not registered.
local now, worker = instant(ARGV[1]), ARGV[2]
if redis.call('HEXISTS', WORKERS, 'row:' .. worker) == 0 then return {now} end
write_without_memory()
redis.call('HINCRBY', WORKERS, 'beat:' .. worker, 1)
redis.call('HSET', WORKERS, 'beat_at:' .. worker, string.format('%.0f', now))
local known = redis.call('HMGET', META, 'gates', 'targets')
local attempts = {}
for _, id in ipairs(redis.call('SMEMBERS', KEYS[FIXED + 1])) do
    attempts[#attempts + 1] = id
    attempts[#attempts + 1] = redis.call('HGET', FACTS, id)
end
return {now, known[1] or 0, known[2] or 0, redis.call('HEXISTS', WORKERS, 'draining:' .. worker), attempts}
