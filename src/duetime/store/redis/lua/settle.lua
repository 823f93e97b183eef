-- Record how attempts of a worker ended, those that it runs.
-- KEYS: after the fixed ones the set of what the worker runs, then the lanes and lists of attempts that are named below.
-- ARGV: now, worker; then for each: id, attempt, letter of its state ('p' again, 'P' parked, or a final one), next due time, tries, crashes,
-- its end, its end if a cancel was requested ('' if it is final), when it ended, the number of its lane among the keys, the number of its
-- attempts' key, and what refused it.
-- Returns now, how many tasks wait for no other one any more, and for each: the letter that it has now, or '' if the worker does not run this attempt.
local now, worker, running = instant(ARGV[1]), ARGV[2], KEYS[FIXED + 1]
write_without_memory()
local letters, ids, facts_of = {now, 0}, {}, {}
for at = 3, #ARGV, 12 do ids[#ids + 1] = ARGV[at] end
for i, facts in ipairs(read_all(ids)) do facts_of[ids[i]] = facts_of[ids[i]] or facts end
local settled, ran, last, plain, ended, tallies = {}, {}, {}, {}, {}, {}  -- what is written at the end, all at once

-- Record the end of a task that nobody waits for and that has no key and no expiry.
local function finish_plainly(id, facts, letter, at)
    let_go(facts)
    facts.s, facts.f, facts.p, facts.r, facts.q = letter, at, nil, nil, nil
    ended[letter] = ended[letter] or {}
    local of, field = ended[letter], letter .. facts.l
    of[#of + 1], of[#of + 2] = at, id
    tallies[field] = (tallies[field] or 0) + 1
    plain[#plain + 1] = id
    settled[#settled + 1], settled[#settled + 2] = id, packed(facts)
end

for at = 3, #ARGV, 12 do
    local id, attempt, letter, due, tries, crashes, ending, cancelled, ended_at, lane, attempts, refused = unpack(ARGV, at, at + 11)
    local facts = facts_of[id]
    if not facts or facts.s ~= 'r' or facts.w ~= worker or facts.a ~= tonumber(attempt) then
        letters[#letters + 1] = ''
    else
        ran[#ran + 1] = id
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
            settled[#settled + 1], settled[#settled + 2] = id, packed(facts)
        else
            last[#last + 1], last[#last + 2] = id, ending
            if facts.h or facts.e or facts.m then
                finish(id, facts, letter, tonumber(ended_at))
            else
                finish_plainly(id, facts, letter, tonumber(ended_at))
            end
        end
        letters[#letters + 1] = letter
    end
end
all_at_once('SREM', running, ran)
all_at_once('HDEL', PROGRESS, ran)
all_at_once('HSET', ENDS, last)
all_at_once('ZREM', LIVE, plain)
for letter, of in pairs(ended) do all_at_once('ZADD', ENDED[letter], of) end
for field, count in pairs(tallies) do redis.call('HINCRBY', TALLIES, field, count) end
all_at_once('HSET', FACTS, settled)
letters[2] = freed
return letters
