-- Limits that the store counts at each claim (model/partitions.py).

-- What is known of partitions, as JSON: limits [name, declared, own, until_at, rates, over]; of partitions of which
-- something is known [index into p_names and p_parts, taken, waits, own, [[rate, at, used]], [[task, takes, due_at]],
-- [running task]]; and the rows of tasks [task, name, part, takes, attempt, at]. The limits are locked first, in a
-- statement of its own, so all that was counted before is seen. Most limits have no tasks that wait and no numbers of
-- single partitions, which is found out once.
create or replace function duetime.count_partitions(
    p_now bigint, p_names text[], p_parts text[], p_waiting integer, p_tasks uuid[], out limits text,
    out partitions text, out taken text, out now_at bigint
) language plpgsql set enable_seqscan = off set jit = off as $$
declare
    v_limits text[] := array(select distinct u.name from unnest(p_names) as u (name));
    v_waits boolean;
    v_owns boolean;
    v_rates boolean;
    v_stops boolean;
begin
    perform from duetime.fleet_limit as f where f.name = any (v_limits) order by f.name for update;
    now_at := coalesce(p_now, duetime.moment());
    select json_agg(json_build_array(f.name, f.declared, f.own, f.until_at,
        case when f.own_rates is null or f.until_at <= now_at then f.rates else f.own_rates end::json, f.over))::text,
        bool_or(f.rates <> '[]'), bool_or(f.over = 'cancel_running')
    into limits, v_rates, v_stops from duetime.fleet_limit as f where f.name = any (v_limits);
    v_waits := exists (select from duetime.held as h where h.reason = 'limit' and h.limit_name = any (v_limits));
    v_owns := exists (select from duetime.partition as p where p.name = any (v_limits));
    select json_agg(json_build_array(s.index, k.taken, k.waits, k.own, k.spent, k.first, k.running))::text
    into partitions
    from unnest(p_names, p_parts) with ordinality as s (name, part, index) cross join lateral (select
        (select sum(a.takes) from duetime.admitted as a where a.name = s.name and a.part = s.part) as taken,
        v_waits and exists (select from duetime.held as h
            where h.reason = 'limit' and h.limit_name = s.name and h.part = s.part) as waits,
        case when v_owns then (select p.own from duetime.partition as p where p.name = s.name and p.part = s.part
            and (p.until_at is null or p.until_at > now_at)) end as own,
        case when v_rates then (select json_agg(json_build_array(x.rate, x.at, x.used)) from duetime.spent as x
            where x.name = s.name and x.part = s.part) end as spent,
        case when v_waits and p_waiting > 0 then (select json_agg(json_build_array(w.id, w.takes, w.due_at)) from (
            select h.id, h.takes, h.due_at from duetime.held as h
            where h.reason = 'limit' and h.limit_name = s.name and h.part = s.part
            order by h.priority desc, h.due_at, h.id limit p_waiting) as w) end as first,
        case when v_stops then (select json_agg(a.task order by a.task) from duetime.admitted as a
            where a.name = s.name and a.part = s.part and a.attempt is not null) end as running
        offset 0) as k
    where k.taken is not null or k.waits or k.own is not null or k.spent is not null;
    select json_agg(json_build_array(a.task, a.name, a.part, a.takes, a.attempt, a.at))::text into taken
    from duetime.admitted as a where a.task = any (p_tasks);
end $$;

-- Take tasks out of a claim of this transaction, as if they had never been in it, and hold them: p_ids under limits.
create or replace function duetime.unclaim(
    p_worker text, p_number bigint, p_ids uuid[], p_limits text[], p_parts text[], p_takes integer[]
) returns void language plpgsql set enable_seqscan = off set jit = off as $$
declare
    v_kept integer[];
begin
    with gone as materialized (
        select r.*, u.limit_name, u.part, u.takes from duetime.open_attempt as r
        join unnest(p_ids, p_limits, p_parts, p_takes) as u (id, limit_name, part, takes) on u.id = r.id
        where r.worker = p_worker and r.number = p_number
    ), written as (
        insert into duetime.task (id, lane, handler, payload, due_at, submitted_at, submitted_by)
        select g.id, g.lane, l.handler, g.payload, g.due_at, g.submitted_at, g.submitted_by
        from gone as g join duetime.lane as l on l.id = g.lane where g.payload is not null
        on conflict do nothing
    )
    insert into duetime.held (id, lane, reason, waiting, due_at, expires_at, attempt, tries, crashes, limit_name, part,
        takes, priority)
    select g.id, g.lane, 'limit', 0, g.due_at, g.expires_at, g.attempt - 1, g.tries, g.crashes, g.limit_name, g.part,
        g.takes, l.priority
    from gone as g join duetime.lane as l on l.id = g.lane;
    select array_agg(u.index order by u.index) into v_kept
    from duetime.claim as c cross join lateral unnest(c.tasks) with ordinality as u (id, index)
    where c.worker = p_worker and c.number = p_number and (u.id in (select unnest(p_ids))) is not true;
    if v_kept is null then
        delete from duetime.claim as c where c.worker = p_worker and c.number = p_number;
    else
        update duetime.claim as c set open = cardinality(v_kept),
            done = repeat('0', cardinality(v_kept))::varbit, cancel = repeat('0', cardinality(v_kept))::varbit,
            tasks = duetime.picked(c.tasks, v_kept, false), lanes = duetime.picked(c.lanes, v_kept),
            dues = duetime.picked(c.dues, v_kept, false), expiries = duetime.picked(c.expiries, v_kept),
            attempts = duetime.picked(c.attempts, v_kept), tries = duetime.picked(c.tries, v_kept),
            crashes = duetime.picked(c.crashes, v_kept), payloads = duetime.picked(c.payloads, v_kept, false),
            submitted = duetime.picked(c.submitted, v_kept), submitters = duetime.picked(c.submitters, v_kept)
        where c.worker = p_worker and c.number = p_number;
    end if;
    -- nobody started them
    delete from duetime.event as e where e.writer = pg_current_xact_id() and e.name = 'task.started'
        and e.subject = any (p_ids::text[]);
end $$;

-- Some elements of an array; one that stands for all stays.
create or replace function duetime.picked(p_values anyarray, p_indexes integer[], p_shared boolean default true)
    returns anyarray language sql immutable parallel safe as
$$ select case when p_values is null or (p_shared and cardinality(p_values) = 1) then p_values
    else (select array_agg(p_values[i.index] order by i.at) from unnest(p_indexes) with ordinality as i (index, at)) end
$$;

-- Write what a claim of this transaction was admitted: rows of those that start, rows that count no more, those that
-- are parked or dropped, and what is spent of rates. Parked tasks of p_replaced partitions are dropped before.
create or replace function duetime.write_admission(
    p_now bigint, p_worker text, p_number bigint, p_tasks uuid[], p_names text[], p_parts text[], p_takes integer[],
    p_attempts integer[], p_back uuid[], p_back_names text[], p_parked uuid[], p_parked_names text[],
    p_parked_parts text[], p_parked_takes integer[], p_dropped uuid[], p_replaced_names text[], p_replaced_parts text[],
    p_spent_names text[], p_spent_parts text[], p_rates integer[], p_ats bigint[], p_used bigint[]
) returns void language plpgsql set enable_seqscan = off set jit = off as $$
declare
    v_replaced uuid[];
begin
    if p_back <> '{}' then
        delete from duetime.admitted as a using unnest(p_back, p_back_names) as b (task, name)
        where a.task = b.task and a.name = b.name;
    end if;
    insert into duetime.admitted (task, name, part, takes, attempt, at)
    select u.task, u.name, u.part, u.takes, u.attempt, p_now
    from unnest(p_tasks, p_names, p_parts, p_takes, p_attempts) as u (task, name, part, takes, attempt)
    on conflict (task, name) do update set part = excluded.part, takes = excluded.takes, attempt = excluded.attempt,
        at = excluded.at;
    if p_replaced_names <> '{}' then
        select array_agg(h.id) into v_replaced
        from duetime.held as h join unnest(p_replaced_names, p_replaced_parts) as r (name, part)
            on h.reason = 'limit' and h.limit_name = r.name and h.part = r.part;
    end if;
    if p_parked <> '{}' or p_dropped <> '{}' then
        perform duetime.unclaim(p_worker, p_number, p_parked || p_dropped,
            p_parked_names || array_fill(''::text, array[cardinality(p_dropped)]),
            p_parked_parts || array_fill(''::text, array[cardinality(p_dropped)]),
            p_parked_takes || array_fill(1, array[cardinality(p_dropped)]));
    end if;
    if p_dropped <> '{}' or v_replaced is not null then
        perform duetime.end_waiting(p_now, 'dropped', p_dropped || v_replaced);
    end if;
    if p_spent_names <> '{}' then
        perform duetime.write_spent(p_spent_names, p_spent_parts, p_rates, p_ats, p_used);
    end if;
end $$;

create or replace function duetime.write_spent(
    p_names text[], p_parts text[], p_rates integer[], p_ats bigint[], p_used bigint[]
) returns void language sql as $$
    insert into duetime.spent (name, part, rate, at, used)
    select * from unnest(p_names, p_parts, p_rates, p_ats, p_used)
    on conflict (name, part, rate) do update set at = excluded.at, used = excluded.used
$$;

-- Let parked tasks go on, each not before an instant, with rows that nobody else can take. The limits are locked by the
-- caller. Returns the earliest position.
create or replace function duetime.go_on(
    p_now bigint, p_tasks uuid[], p_names text[], p_parts text[], p_takes integer[], p_ats bigint[]
) returns bigint language plpgsql set enable_seqscan = off set jit = off as $$
declare
    v_earliest bigint;
begin
    -- a look that a crash takes back is repeated; what is committed later is never durable before this
    perform set_config('synchronous_commit', 'off', true);
    with freed as (
        delete from duetime.held as h where h.id = any (p_tasks) and h.reason = 'limit' returning h.*
    ), chosen as (
        select f.*, u.name, u.at, u.takes as each
        from freed as f join unnest(p_tasks, p_names, p_takes, p_ats) as u (id, name, takes, at) on u.id = f.id
    ), counted as (
        insert into duetime.admitted (task, name, part, takes, attempt, at)
        select c.id, c.name, c.part, c.each, null, c.at from chosen as c
        on conflict (task, name) do update set part = excluded.part, takes = excluded.takes, attempt = null,
            at = excluded.at
    ), placed as (
        insert into duetime.due (lane, pos, id, due_at, expires_at, attempt, tries, crashes)
        select c.lane, greatest(c.due_at, c.at, p_now), c.id, c.due_at, c.expires_at, c.attempt, c.tries, c.crashes
        from chosen as c order by c.at, c.priority desc, c.due_at, c.id
        returning pos
    )
    select min(p.pos) into v_earliest from placed as p;
    return v_earliest;
end $$;

-- Free what ended attempts took: returns the partitions in which others wait. The limits (null: whichever these tasks
-- have) are locked first, as everybody does who writes such rows.
create or replace function duetime.leave(p_tasks uuid[], p_attempts integer[], p_limits text[])
returns table (name text, part text) language plpgsql rows 10 set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_limits text[] := coalesce(p_limits, array(
        select distinct a.name from duetime.admitted as a where a.task = any (p_tasks)));
begin
    perform set_config('synchronous_commit', 'off', true);  -- as in go_on
    perform from duetime.fleet_limit as f where f.name = any (v_limits) order by f.name for update;
    if exists (select from duetime.held as h where h.reason = 'limit' and h.limit_name = any (v_limits)) then
        return query
        with gone as (
            delete from duetime.admitted as a using unnest(p_tasks, p_attempts) as u (task, attempt)
            where a.task = u.task and a.attempt = u.attempt returning a.name, a.part
        )
        select distinct g.name, g.part from gone as g where exists (select from duetime.held as h
            where h.reason = 'limit' and h.limit_name = g.name and h.part = g.part);
    else
        delete from duetime.admitted as a using unnest(p_tasks, p_attempts) as u (task, attempt)
        where a.task = u.task and a.attempt = u.attempt;
    end if;
end $$;

-- Which rows are of attempts that are not open any more, or of tasks that could go on and wait no more, or are gated:
-- of partitions in which others wait, and of the oldest rows.
create or replace function duetime.vain_admitted(p_now bigint, p_limit integer) returns uuid[] language plpgsql
set enable_seqscan = off set jit = off as $$
declare
    v_now bigint := coalesce(p_now, duetime.moment());
    v_seen uuid[];
begin
    if exists (select from duetime.held as h where h.reason = 'limit') then
        v_seen := array(select a.task from duetime.admitted as a where exists (select from duetime.held as h
            where h.reason = 'limit' and h.limit_name = a.name and h.part = a.part) limit p_limit);
    end if;
    v_seen := v_seen || array(select a.task from duetime.admitted as a order by a.task limit p_limit / 4);
    return array(
        with running as materialized (
            select r.id, r.attempt from duetime.running(v_seen) as r
        ), waiting as materialized (
            select d.id from duetime.due as d join duetime.lane as l on l.id = d.lane
            where d.id = any (v_seen) and not exists (select from duetime.gate as g where g.handler = l.handler
                and g.collection in ('', l.collection) and (g.until_at is null or g.until_at > v_now))
        )
        select a.task from duetime.admitted as a where a.task = any (v_seen)
            and case when a.attempt is null then not exists (select from waiting as w where w.id = a.task)
                else not exists (select from running as r where r.id = a.task and r.attempt = a.attempt) end);
end $$;

-- Forget such rows. Most looks find none, and lock nothing.
create or replace function duetime.forget_vain(p_now bigint, p_limit integer) returns integer language plpgsql
set enable_seqscan = off set jit = off as $$
declare
    v_vain uuid[] := duetime.vain_admitted(p_now, p_limit);
    v_count integer;
begin
    if cardinality(v_vain) = 0 then
        return 0;
    end if;
    perform from duetime.fleet_limit as f where f.by is not null or f.rates <> '[]' or f.over <> 'wait' order by f.name
        for update;
    v_vain := duetime.vain_admitted(p_now, p_limit);  -- who could go on may run by now
    with gone as (
        delete from duetime.admitted as a where a.task = any (v_vain) returning a.task
    )
    select count(*) into v_count from gone;
    return v_count;
end $$;

-- Keep what code declares of limits that the store counts, for some handlers (model.limit.CountedLimit). What waits
-- under what is declared no more is due again. Tells whether anything has changed.
create or replace function duetime.declare_counted(
    p_now bigint, p_handlers text[], p_names text[], p_running integer[], p_uses text[], p_by text[], p_rates text[],
    p_over text[]
) returns boolean language plpgsql set enable_seqscan = off set jit = off as $$
declare
    v_now bigint := duetime.begin_adding(p_now);
    v_limit record;
    v_mine jsonb;
    v_changed boolean := false;
    v_freed uuid[] := '{}';
begin
    insert into duetime.fleet_limit as f (name, declared, uses, by, rates, over)
    select u.name, u.running, '{}', u.by, u.rates, u.over from unnest(p_names, p_running, p_by, p_rates, p_over)
        as u (name, running, by, rates, over) order by u.name on conflict (name) do nothing;
    for v_limit in select f.*, f.by as field from duetime.fleet_limit as f
        where f.name = any (p_names) or ((f.by is not null
        or f.rates <> '[]' or f.over <> 'wait') and f.uses ?| p_handlers) order by f.name for update
    loop
        v_mine := coalesce((select u.uses::jsonb from unnest(p_names, p_uses) as u (name, uses)
            where u.name = v_limit.name), '{}');
        v_freed := v_freed || array(select h.id from duetime.held as h join duetime.lane as l on l.id = h.lane
            where h.reason = 'limit' and h.limit_name = v_limit.name and l.handler = any (p_handlers)
            and not v_mine ? l.handler);
        v_freed := v_freed || array(select h.id from duetime.held as h
            join unnest(p_names, p_by) as u (name, by) on u.name = h.limit_name
            where h.reason = 'limit' and h.limit_name = v_limit.name and u.by is distinct from v_limit.field);
        update duetime.fleet_limit as f set uses = (f.uses - p_handlers) || v_mine, version = f.version + 1
            where f.name = v_limit.name and f.uses <> (f.uses - p_handlers) || v_mine;
        v_changed := v_changed or found;
        update duetime.fleet_limit as f set declared = u.running, by = u.by, rates = u.rates, over = u.over,
            version = f.version + 1
        from unnest(p_names, p_running, p_by, p_rates, p_over) as u (name, running, by, rates, over)
        where f.name = v_limit.name and u.name = f.name
            and (f.declared, f.by, f.rates, f.over) is distinct from (u.running, u.by, u.rates, u.over);
        v_changed := v_changed or found;
        update duetime.fleet_limit as f set by = null, rates = '[]', over = 'wait'
            where f.name = v_limit.name and f.uses = '{}' and f.name <> all (p_names);
    end loop;
    if v_freed <> '{}' then
        perform duetime.unpark(v_now, v_freed);
    end if;
    if v_changed then
        update duetime.control set gates_version = gates_version + 1;
    end if;
    return v_changed;
end $$;
