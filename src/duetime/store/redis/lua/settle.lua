-- Record how attempts of a worker ended, those that it runs.
-- KEYS: after the fixed ones the set of what the worker runs, then the lanes and lists of attempts that are named below.
-- ARGV: now, worker; then for each: id, attempt, letter of its state ('p' again, 'P' parked, or a final one), next due time, tries, crashes,
-- its end, its end if a cancel was requested ('' if it is final), when it ended, the number of its lane among the keys, the number of its
-- attempts' key, and what refused it.
-- Returns now, how many tasks wait for no other one any more, and for each: the letter that it has now, or '' if the worker does not run this attempt.
local now, worker, running = instant(ARGV[1]), ARGV[2], KEYS[FIXED + 1]
write_without_memory()
local letters = {now, 0}
for at = 3, #ARGV, 12 do
    local id, attempt, letter, due, tries, crashes, ending, cancelled, ended_at, lane, attempts, refused = unpack(ARGV, at, at + 11)
    local raw = redis.call('HGET', FACTS, id)
    local facts = raw and cmsgpack.unpack(raw)
    if not facts or facts.s ~= 'r' or facts.w ~= worker or facts.a ~= tonumber(attempt) then
        letters[#letters + 1] = ''
    else
        redis.call('SREM', running, id)
        redis.call('HDEL', PROGRESS, id)
        if facts.x and cancelled ~= '' then letter, ending = 'C', cancelled end
        facts.t, facts.k = tonumber(tries), tonumber(crashes)
        if letter == 'p' or letter == 'P' then
            due = tonumber(due)
            if facts.g < facts.d then due = math.max(due, facts.d) end  -- it was claimed ahead
            let_go(facts)
            facts.s, facts.d = 'p', due
            redis.call('HSET', KEYS[FIXED + tonumber(attempts)], attempt, ending)
            -- of very many attempts the first and the last are kept
            if tonumber(attempt) > 500 then redis.call('HDEL', KEYS[FIXED + tonumber(attempts)], string.format('%d', attempt - 400)) end
            if letter == 'P' then
                facts.p = 1
                if refused ~= '' then facts.r = facts.r and facts.r .. ' ' .. refused or refused end
                redis.call('ZADD', PARKED, math.max(due, now), id)
            else
                redis.call('ZADD', KEYS[FIXED + tonumber(lane)], math.max(due, now), id)
            end
            write_facts(id, facts)
        else
            redis.call('HSET', ENDS, id, ending)
            finish(id, facts, letter, tonumber(ended_at))
        end
        letters[#letters + 1] = letter
    end
end
letters[2] = freed
return letters
