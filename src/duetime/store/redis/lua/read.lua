-- Read tasks by id.
-- KEYS: the fixed ones. ARGV: now, ids. Returns now, and for each id: facts, record, end, progress; or nothing in their place.
local found = {instant(ARGV[1])}
for i = 2, #ARGV do
    local id = ARGV[i]
    found[#found + 1] = {
        redis.call('HGET', FACTS, id), redis.call('HGET', RECORDS, id), redis.call('HGET', ENDS, id), redis.call('HGET', PROGRESS, id)
    }
end
return found
