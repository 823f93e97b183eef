-- What all scripts share: the fixed keys, the clock, and how a task ends. It is put before each of them.
-- A key is either one of these or comes after them in KEYS: no script makes up the name of a key.
local META, WORKERS, FACTS, RECORDS, ENDS, EXPIRY, LIVE, ALL, HOLDERS, LATEST, TALLIES, PROGRESS, PARKED, LANES, CHILDREN,
    BLOCKED, FREED = unpack(KEYS, 1, 17)
local ENDED = {S = KEYS[18], F = KEYS[19], C = KEYS[20], D = KEYS[21], E = KEYS[22]}
local FIXED = 22
local freed = 0  -- tasks that wait for no other task any more; who called the script moves them to their lanes

-- The server's time in microseconds, unless a test has given one.
local function instant(given)
    if given ~= '' then return tonumber(given) end
    local time = redis.call('TIME')
    return time[1] * 1000000 + time[2]
end

-- Begin to write with what needs no memory: then the server lets the rest pass too when it has reached its limit. Ends, beats and cancels
-- must not wait for memory; new tasks do.
local function write_without_memory()
    redis.call('ZREM', PARKED, '')
end

local function packed(facts)
    facts.v = (facts.v or 0) + 1
    return cmsgpack.pack(facts)
end

local function write_facts(id, facts)
    redis.call('HSET', FACTS, id, packed(facts))
end

-- Run a command with many arguments, if there are any. A call from Lua costs more than most of what it does, so batches are gathered.
local function all_at_once(command, key, words)
    if #words > 0 then redis.call(command, key, unpack(words)) end
end

-- Read the facts of tasks, at most a few thousand; nil for each that there is not.
local function read_all(ids)
    local found = #ids > 0 and redis.call('HMGET', FACTS, unpack(ids)) or {}
    for i, raw in ipairs(found) do found[i] = raw and cmsgpack.unpack(raw) end
    return found
end

-- No one has the task any more.
local function let_go(facts)
    facts.w, facts.c, facts.g, facts.x = nil, nil, nil, nil
end

local finish

-- Tell tasks that wait for another one that it has ended.
local function free_children(id, letter, at)
    for _, link in ipairs(redis.call('ZRANGEBYLEX', CHILDREN, '[' .. id .. ':', '(' .. id .. ';')) do
        local child = string.sub(link, #id + 2)
        local raw = redis.call('HGET', FACTS, child)
        local facts = raw and cmsgpack.unpack(raw)
        if facts and facts.s == 'b' and facts.q and facts.q[id] then
            if facts.q[id] == 's' and letter ~= 'S' then
                facts.y, facts.z = facts.q, id  -- what it waited for in vain is remembered, for an operator's retry
                redis.call('ZREM', BLOCKED, child)
                finish(child, facts, 'C', at)
            else
                facts.q[id] = nil
                if next(facts.q) == nil then
                    facts.q = nil
                    freed = freed + 1
                    redis.call('ZADD', FREED, facts.n, child)
                end
                write_facts(child, facts)
            end
        end
    end
end

-- Record the end of a task that stands in no lane and in no worker's set any more.
finish = function(id, facts, letter, at)
    let_go(facts)
    facts.s, facts.f, facts.p, facts.r, facts.q = letter, at, nil, nil, nil
    if facts.h then
        if redis.call('HGET', HOLDERS, facts.h) == id then redis.call('HDEL', HOLDERS, facts.h) end
        redis.call('HSET', LATEST, facts.h, id)
    end
    if facts.e then redis.call('ZREM', EXPIRY, id) end
    redis.call('ZREM', LIVE, id)
    redis.call('ZADD', ENDED[letter], at, id)
    redis.call('HINCRBY', TALLIES, letter .. facts.l, 1)
    write_facts(id, facts)
    if facts.m then free_children(id, letter, at) end
end
