-- Add new tasks, in their order.
-- KEYS: after the fixed ones the lanes. ARGV: now, the latest instant there is; then for each task: id, record, lane (its name, and its
-- number among the keys), due time or '', delay, expiry or '', expiry after the due time or '', how many names its handler has, its key under
-- each of them, if it has one, how many tasks it waits for, and of each its id and whether it needs its success ('s') or end ('e').
-- Returns now, and for each task: 0 added; 1 its id is stored; 2 it waits for other tasks; 3 it was cancelled, because it would wait in vain;
-- the id of the task that has its key. Or, with nothing done, 'unknown' and the id of a task that there is not.
local now = instant(ARGV[1])

-- Read the task that begins at a position of ARGV; return it and the position of the next one.
local function read(at)
    local id, record, lane, number, due, delay, expires, life, names = unpack(ARGV, at, at + 8)
    local task = {id = id, record = record, lane = lane, number = number, due = due, delay = delay, expires = expires, life = life}
    at = at + 9
    task.fields, at = at, at + tonumber(names)
    task.names, task.edges = tonumber(names), tonumber(ARGV[at])
    task.first_edge = at + 1
    return task, at + 1 + 2 * task.edges
end

-- Return what a task would wait for, and the first one that it needs in vain.
local function waits_of(task)
    local waits, vain = {}, nil
    for i = 0, task.edges - 1 do
        local parent, needs = ARGV[task.first_edge + 2 * i], ARGV[task.first_edge + 2 * i + 1]
        local facts = cmsgpack.unpack(redis.call('HGET', FACTS, parent))
        if not facts.f then
            waits[parent] = waits[parent] == 's' and 's' or needs
        elseif needs == 's' and facts.s ~= 'S' then
            waits[parent] = 's'
            vain = vain and vain < parent and vain or parent
        end
    end
    return waits, vain
end

local function link(id, waits)
    for parent in pairs(waits) do
        redis.call('ZADD', CHILDREN, 0, parent .. ':' .. id)
        local facts = cmsgpack.unpack(redis.call('HGET', FACTS, parent))
        if not facts.m then
            facts.m = 1
            write_facts(parent, facts)
        end
    end
end

local at, known, task, plain, tasks = 3, {}, nil, true, {}
while at <= #ARGV do
    task, at = read(at)
    for i = 0, task.edges - 1 do
        local parent = ARGV[task.first_edge + 2 * i]
        -- a repeat may have outlived those that it waited for
        if not known[parent] and redis.call('HEXISTS', FACTS, parent) == 0 and redis.call('HEXISTS', FACTS, task.id) == 0 then
            return {now, 'unknown', parent}
        end
    end
    plain = plain and task.names == 0 and task.edges == 0 and not known[task.id]
    known[task.id], tasks[#tasks + 1] = true, task
end

-- Return the facts of a new task.
local function new_facts(task, number)
    local due = task.due ~= '' and tonumber(task.due) or now + tonumber(task.delay)
    local expiry = nil
    if task.expires ~= '' then expiry = tonumber(task.expires) end
    if task.life ~= '' then expiry = math.min(tonumber(ARGV[2]), due + tonumber(task.life)) end
    return {s = 'p', l = task.lane, d = due, i = due, u = now, n = number, e = expiry}
end

local verdicts = {now}

-- Add tasks that have neither keys nor others to wait for, each of which is named once, with few calls.
local function add_plain()
    local ids, new = {}, 0
    for i, each in ipairs(tasks) do ids[i] = each.id end
    local stored = redis.call('HMGET', FACTS, unpack(ids))
    for i = 1, #ids do
        if not stored[i] then new = new + 1 end
    end
    local number = new > 0 and redis.call('HINCRBY', META, 'seq', new) - new or 0
    local records, facts_of, numbered, expiring, lanes = {}, {}, {}, {}, {}
    for i, each in ipairs(tasks) do
        verdicts[i + 1] = stored[i] and 1 or 0
        if not stored[i] then
            number = number + 1
            local id, facts = each.id, new_facts(each, number)
            local lane = lanes[each.number] or {name = each.lane}
            lanes[each.number] = lane
            lane[#lane + 1], lane[#lane + 2] = math.max(facts.d, now), id
            records[#records + 1], records[#records + 2] = id, each.record
            numbered[#numbered + 1], numbered[#numbered + 2] = number, id
            if facts.e then expiring[#expiring + 1], expiring[#expiring + 2] = facts.e, id end
            facts_of[#facts_of + 1], facts_of[#facts_of + 2] = id, packed(facts)
        end
    end
    all_at_once('HSET', RECORDS, records)
    all_at_once('ZADD', ALL, numbered)
    all_at_once('ZADD', LIVE, numbered)
    all_at_once('ZADD', EXPIRY, expiring)
    for key, lane in pairs(lanes) do
        redis.call('HSETNX', LANES, lane.name, 1)
        all_at_once('ZADD', KEYS[FIXED + tonumber(key)], lane)
    end
    all_at_once('HSET', FACTS, facts_of)
    return verdicts
end

if plain and #tasks > 0 then return add_plain() end

for _, task in ipairs(tasks) do
    local id, holder = task.id, nil
    for i = 0, task.names - 1 do
        holder = holder or redis.call('HGET', HOLDERS, ARGV[task.fields + i])
    end
    if redis.call('HEXISTS', FACTS, id) == 1 then
        verdicts[#verdicts + 1] = 1
    elseif holder then
        verdicts[#verdicts + 1] = holder
    else
        local number = redis.call('HINCRBY', META, 'seq', 1)
        local facts = new_facts(task, number)
        if task.names > 0 then facts.h = ARGV[task.fields] end
        redis.call('HSET', RECORDS, id, task.record)
        redis.call('HSETNX', LANES, task.lane, 1)
        redis.call('ZADD', ALL, number, id)
        local verdict, waits, vain = 0, nil, nil
        if task.edges > 0 then
            waits, vain = waits_of(task)
            if next(waits) then link(id, waits) end
        end
        if vain then
            verdict, facts.y, facts.z = 3, waits, vain
            finish(id, facts, 'C', now)
        else
            if waits and next(waits) then
                verdict, facts.s, facts.q = 2, 'b', waits
                redis.call('ZADD', BLOCKED, number, id)
            else
                redis.call('ZADD', KEYS[FIXED + tonumber(task.number)], math.max(facts.d, now), id)
            end
            redis.call('ZADD', LIVE, number, id)
            if facts.e then redis.call('ZADD', EXPIRY, facts.e, id) end
            if facts.h then redis.call('HSET', HOLDERS, facts.h, id) end
            write_facts(id, facts)
        end
        verdicts[#verdicts + 1] = verdict
    end
end
return verdicts
