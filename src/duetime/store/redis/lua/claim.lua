-- Hand the first due tasks of lanes to a worker.
-- KEYS: after the fixed ones the set of what the worker runs, then the lanes.
-- ARGV: now, incarnation, version of the gates, number of lanes, worker, claim, ahead, whether the claim's number must be unused, the most
-- bytes of records, then for each lane how many. To take what is due only if that is all that is due: then for each lane the number of its
-- handler, how many in all, and how many of each handler.
-- Returns now and why nothing was done, or: now, 'ok', epoch, when the next one may be due or -1, whether something due was left, and for
-- each task: the index of its lane, its id, facts and record; then the first entries of each lane with their positions, if only all were to be
-- taken, whether some had expired, and how many tasks wait for no other one any more. If there was more: now, 'heads' and these entries.
local now = instant(ARGV[1])
local known = redis.call('HMGET', META, 'incarnation', 'open_at', 'gates', 'epoch')
if known[1] ~= ARGV[2] then return {now, 'incarnation'} end
if tonumber(known[2] or 0) > now then return {now, 'closed', known[2]} end
if (known[3] or '0') ~= ARGV[3] then return {now, 'gates'} end
if redis.call('HLEN', LANES) ~= tonumber(ARGV[4]) then return {now, 'lanes'} end
local worker, claim, running = ARGV[5], tonumber(ARGV[6]), KEYS[FIXED + 1]
local registered = redis.call('HMGET', WORKERS, 'row:' .. worker, 'draining:' .. worker)
if not registered[1] or registered[2] then return {now, 'unknown'} end
if ARGV[8] == '1' then
    for _, id in ipairs(redis.call('SMEMBERS', running)) do
        if cmsgpack.unpack(redis.call('HGET', FACTS, id)).c == claim then return {now, 'used'} end
    end
end
local last, left = now + tonumber(ARGV[7]), tonumber(ARGV[9])
local limit = string.format('%.0f', last)
local count = #KEYS - FIXED - 1
local heads = {}
if #ARGV > 9 + count then
    local all, of, total = 0, {}, tonumber(ARGV[10 + 2 * count])
    local fits = true
    for i = 1, count do
        local quota, handler = tonumber(ARGV[9 + i]), tonumber(ARGV[9 + count + i])
        heads[i] = quota > 0 and redis.call('ZRANGEBYSCORE', KEYS[FIXED + 1 + i], '-inf', limit, 'WITHSCORES', 'LIMIT', 0, quota) or {}
        all, of[handler] = all + #heads[i] / 2, (of[handler] or 0) + #heads[i] / 2
        fits = fits and all <= total and of[handler] <= tonumber(ARGV[10 + 2 * count + handler])
    end
    if not fits then return {now, 'heads', heads} end
end
write_without_memory()
local READ_AT_ONCE = 50  -- records may be large
local next_at, more, expired, taken = -1, 0, 0, {}
for i = FIXED + 2, #KEYS do
    local quota = tonumber(ARGV[8 + i - FIXED])
    local ids = quota > 0 and redis.call('ZRANGEBYSCORE', KEYS[i], '-inf', limit, 'LIMIT', 0, quota) or {}
    local claimed, written, full = {}, {}, false
    for first = 1, #ids, READ_AT_ONCE do
        local some = {unpack(ids, first, math.min(first + READ_AT_ONCE - 1, #ids))}
        local records = redis.call('HMGET', RECORDS, unpack(some))
        for number, facts in ipairs(read_all(some)) do
            local id, record = some[number], records[number]
            if not facts or not record then
                redis.call('ZREM', KEYS[i], id)  -- there is no such task, and no other one must wait behind it
            elseif facts.e and facts.e <= now then
                redis.call('ZREM', KEYS[i], id)
                finish(id, facts, 'E', now)
                expired = 1
            else
                left = left - #record
                full = left < 0 and #taken > 0
                if full then break end
                facts.s, facts.w, facts.c, facts.g, facts.a = 'r', worker, claim, now, (facts.a or 0) + 1
                local before, raw = #taken, packed(facts)
                claimed[#claimed + 1] = id
                written[#written + 1], written[#written + 2] = id, raw
                taken[before + 1], taken[before + 2], taken[before + 3], taken[before + 4] = i - FIXED - 2, id, raw, record
            end
        end
        if full then break end
    end
    if full then more = 1 end
    all_at_once('ZREM', KEYS[i], claimed)
    all_at_once('SADD', running, claimed)
    all_at_once('HSET', FACTS, written)
    local later = redis.call('ZRANGEBYSCORE', KEYS[i], '(' .. limit, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    if later and (next_at < 0 or tonumber(later) < next_at) then next_at = tonumber(later) end
end
return {now, 'ok', tonumber(known[4] or 0), next_at, more, taken, heads, expired, freed}
