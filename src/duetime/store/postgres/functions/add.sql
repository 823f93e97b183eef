-- Adding tasks that wait for time alone.

-- New tasks from their columns. Programs call it by names, so that a column can be added beside programs that do not
-- know it.
create or replace function duetime.new_tasks(
    least_id uuid, since_at bigint, newest_at bigint, ids uuid[], lanes integer[], handlers text[], payloads text[],
    dues bigint[], delays bigint[], submitters text[], keys text[], expiries bigint[], expiries_in bigint[],
    timeouts double precision[], retries text[], extras text[], schedules text[], planned bigint[]
) returns duetime.new_tasks language sql immutable parallel safe as $$
    select row(least_id, since_at, newest_at, ids, lanes, handlers, payloads, dues, delays, submitters, keys, expiries,
        expiries_in, timeouts, retries, extras, schedules, planned)::duetime.new_tasks
$$;

-- One row for each of these tasks, as they will be stored. `plain`: short and with nothing rare to tell, so it needs
-- no row in `task`. A function that the planner puts in the place of its call. What stands for all tasks is taken
-- out once, not for each.
create or replace function duetime.each_new(p_tasks duetime.new_tasks, p_now bigint)
returns table (
    id uuid, lane integer, handler text, payload text, size integer, plain boolean, due_at bigint, expires_at bigint,
    submitted_by text, key text, timeout double precision, retry text, extras text, schedule text, planned_at bigint
) language sql stable parallel safe rows 1000 as $$
    select n.id, coalesce(n.lane, a.lane), coalesce(n.handler, a.handler), n.payload, octet_length(n.payload),
        octet_length(n.payload) <= 1000
            and (n.key, n.expires_at, n.expires_in, n.timeout, n.retry, n.extras, n.schedule, n.planned_at) is null,
        d.due_at,
        coalesce(n.expires_at, case when n.expires_in is not null then least(d.due_at + n.expires_in,
            253402300799000000) end),
        coalesce(n.submitted_by, a.submitted_by), n.key, n.timeout, n.retry, n.extras, n.schedule, n.planned_at
    from (
        select (p_tasks).lanes[1] as lane, (p_tasks).handlers[1] as handler, (p_tasks).submitters[1]
            as submitted_by offset 0
    ) as a
    cross join unnest((p_tasks).ids, (p_tasks).lanes, (p_tasks).handlers, (p_tasks).payloads, (p_tasks).dues,
        (p_tasks).delays, (p_tasks).submitters, (p_tasks).keys, (p_tasks).expiries, (p_tasks).expiries_in,
        (p_tasks).timeouts, (p_tasks).retries, (p_tasks).extras, (p_tasks).schedules, (p_tasks).planned)
        as n (id, lane, handler, payload, due, delay, submitted_by, key, expires_at, expires_in, timeout, retry, extras,
            schedule, planned_at)
    cross join lateral (select coalesce(n.due, least(p_now + coalesce(n.delay, 0), 253402300799000000)) as due_at) as d
$$;

-- Add tasks that are most probably new; if one is not, all are refused. A generic plan from the first call: a plan for
-- given values holds a copy of all tasks for every column that it reads, which cost a fifth more CPU for 10,000 tasks
-- and twice as much for one in the first five calls of a connection (`bench/http.py`).
create or replace function duetime.add_new(p_now bigint, p_tasks duetime.new_tasks) returns bigint language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    v_now bigint;
begin
    v_now := duetime.begin_adding(p_now);
    if p_tasks.newest_at > v_now then
        perform duetime.note_ahead(p_tasks.newest_at, v_now);
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'a transaction with an old view cannot know what is new' using errcode = 'DT001';
    end if;
    if exists (select from unnest(p_tasks.lanes) as u (lane)
        where not exists (select from duetime.lane as l where l.id = u.lane)) then
        raise exception 'a lane is gone' using errcode = 'DT004';  -- by a fail-over
    end if;
    if p_tasks.keys is not null and exists (select from duetime.alias as a
        where a.alias = any (p_tasks.handlers) or a.name = any (p_tasks.handlers)) then
        raise exception 'a key may be held by another name of its handler' using errcode = 'DT001';
    end if;
    insert into duetime.due (lane, pos, id, due_at, expires_at, attempt, tries, crashes, size, payload, submitted_at,
        submitted_by)
    select n.lane, greatest(n.due_at, v_now), n.id, n.due_at, n.expires_at, 0, 0, 0, n.size,
        case when n.plain then n.payload end, case when n.plain then v_now end, case when n.plain
            then n.submitted_by end
    from duetime.each_new(p_tasks, v_now) as n;
    if num_nonnulls(p_tasks.keys, p_tasks.expiries, p_tasks.expiries_in, p_tasks.timeouts, p_tasks.retries,
        p_tasks.extras,
        p_tasks.schedules, p_tasks.planned) > 0
        or exists (select from unnest(p_tasks.payloads) as n (payload) where octet_length(n.payload) > 1000) then
        insert into duetime.task (id, lane, handler, key, payload, due_at, submitted_at, submitted_by, expires_at,
            timeout,
            retry, extras, schedule, planned_at)
        select n.id, n.lane, n.handler, n.key, n.payload, n.due_at, v_now, n.submitted_by, n.expires_at, n.timeout,
            n.retry,
            n.extras, n.schedule, n.planned_at
        from duetime.each_new(p_tasks, v_now) as n where not n.plain;
    end if;
    -- after the inserts, which wait for whoever is just taking or ending a task with such an id (I13)
    if duetime.underway(p_tasks.least_id, p_tasks.ids) <> '{}' then
        raise exception 'some of these tasks are stored already' using errcode = 'DT001';
    end if;
    -- not one condition: to begin the second look alone takes longer than the first
    if duetime.may_be_known(p_tasks.least_id, p_tasks.since_at) then
        if exists (select from duetime.history as h where h.id = any (p_tasks.ids)
            and h.finished_at >= p_tasks.since_at) then
            raise exception 'some of these tasks are stored already' using errcode = 'DT001';
        end if;
    end if;
    if cardinality(p_tasks.lanes) = 1 then
        insert into duetime.tally (lane, state, n) values (p_tasks.lanes[1], 'live', cardinality(p_tasks.ids));
    else
        insert into duetime.tally (lane, state, n) select l, 'live', count(*) from unnest(p_tasks.lanes) as l
            group by l;
    end if;
    return v_now;
end $$;

-- The same, and wake up who listens, in a transaction of its own after the commit: one way to the server and back
-- less for a task that somebody waits for. That transaction need not be on disk before it ends, and so holds the
-- server's lock of all NOTIFYs for a moment only.
create or replace procedure duetime.add_new_and_tell(
    p_now bigint, p_tasks duetime.new_tasks, p_channel text, p_message text, inout p_at bigint
) language plpgsql as $$
begin
    p_at := duetime.add_new(p_now, p_tasks);
    commit;
    perform set_config('synchronous_commit', 'off', true), pg_notify(p_channel, p_message);
end $$;

-- The same as `add_new`, and before it the requests that ask for these tasks; where a task has none the key is null.
-- If a request is not new, all is refused. In the order of keys, so that no two wait for each other.
create or replace function duetime.add_requested(
    p_now bigint, p_tasks duetime.new_tasks, p_callers text[], p_keys text[], p_digests text[]
) returns bigint language plpgsql as $$
declare
    v_stored bigint;
begin
    insert into duetime.request (caller, key, digest, task, at)
    select r.caller, r.key, r.digest, r.task::text, coalesce(p_now, duetime.clock())
    from unnest(p_callers, p_keys, p_digests, p_tasks.ids) as r (caller, key, digest, task) where r.key is not null
    order by r.caller, r.key
    on conflict do nothing;
    get diagnostics v_stored = row_count;
    if v_stored < cardinality(array_remove(p_keys, null)) then
        raise exception 'some of these requests are stored already' using errcode = 'DT001';
    end if;
    return duetime.add_new(p_now, p_tasks);
end $$;

-- The same, and wake up who listens, as `add_new_and_tell` does.
create or replace procedure duetime.add_requested_and_tell(
    p_now bigint, p_tasks duetime.new_tasks, p_callers text[], p_keys text[], p_digests text[], p_channel text,
    p_message text, inout p_at bigint
) language plpgsql as $$
begin
    p_at := duetime.add_requested(p_now, p_tasks, p_callers, p_keys, p_digests);
    commit;
    perform set_config('synchronous_commit', 'off', true), pg_notify(p_channel, p_message);
end $$;

-- Add what can be added of these tasks and return their ids: those whose id is stored already or whose key is held
-- are left out.
create or replace function duetime.add(p_now bigint, p_tasks duetime.new_tasks) returns text[] language plpgsql
set enable_seqscan = off set jit = off as $$
declare
    v_now bigint;
    v_known uuid[] := '{}';
    v_stored uuid[];
    v_added uuid[];
begin
    v_now := duetime.begin_adding(p_now);
    if p_tasks.newest_at > v_now then
        perform duetime.note_ahead(p_tasks.newest_at, v_now);
    end if;
    if current_setting('transaction_isolation') = 'read committed'  -- others need not see a lane that was just made
        and exists (select from unnest(p_tasks.lanes) as u (lane)
            where not exists (select from duetime.lane as l where l.id = u.lane)) then
        raise exception 'a lane is gone' using errcode = 'DT004';  -- by a fail-over
    end if;
    if duetime.may_be_known(p_tasks.least_id, p_tasks.since_at) then
        v_known := array(
            select h.id from duetime.history as h where h.id = any (p_tasks.ids) and h.finished_at >= p_tasks.since_at);
    end if;
    -- left out beforehand, and not only where the inserts would meet them: who only repeats what is there must
    -- not lock it
    v_known := v_known || array(select d.id from duetime.due as d where d.id = any (p_tasks.ids))
        || duetime.underway(p_tasks.least_id, p_tasks.ids);
    with stored as (
        insert into duetime.task (id, lane, handler, key, payload, due_at, submitted_at, submitted_by, expires_at,
            timeout,
            retry, extras, schedule, planned_at)
        select n.id, n.lane, n.handler, n.key, n.payload, n.due_at, v_now, n.submitted_by, n.expires_at, n.timeout,
            n.retry,
            n.extras, n.schedule, n.planned_at
        from duetime.each_new(p_tasks, v_now) as n
        where v_known = '{}' or (n.id in (select unnest(v_known))) is not true
        on conflict do nothing
        returning id, lane, due_at, expires_at, octet_length(payload) as size
    ), placed as (
        insert into duetime.due (lane, pos, id, due_at, expires_at, attempt, tries, crashes, size, doubtful)
        select s.lane, greatest(s.due_at, v_now), s.id, s.due_at, s.expires_at, 0, 0, 0, s.size,
            nullif(current_setting('transaction_isolation') <> 'read committed', false)
        from stored as s
        on conflict (id) do nothing
        returning id, lane
    ), counted as (
        insert into duetime.tally (lane, state, n) select p.lane, 'live', count(*) from placed as p group by p.lane
    )
    select array(select s.id from stored as s), array(select p.id from placed as p) into v_stored, v_added;
    if cardinality(v_added) < cardinality(v_stored) then  -- the others stand whole in `due`
        delete from duetime.task as t where t.id = any (v_stored) and t.id <> all (v_added);
    end if;
    if v_added <> '{}' then
        -- the inserts may have waited for somebody who was just taking or ending such a task (I13)
        v_known := duetime.underway(p_tasks.least_id, v_added);
        if duetime.may_be_known(p_tasks.least_id, p_tasks.since_at) then
            v_known := v_known || array(
                select h.id from duetime.history as h where h.id = any (v_added) and h.finished_at >= p_tasks.since_at);
        end if;
        if v_known <> '{}' then
            with gone as (
                delete from duetime.due as d where d.id = any (v_known) returning d.lane
            ), forgotten as (
                delete from duetime.task as t where t.id = any (v_known)
            )
            insert into duetime.tally (lane, state, n) select g.lane, 'live', -count(*) from gone as g group by g.lane;
            v_added := array(select a.id from unnest(v_added) as a (id) where a.id <> all (v_known));
        end if;
    end if;
    return v_added::text[];
end $$;
