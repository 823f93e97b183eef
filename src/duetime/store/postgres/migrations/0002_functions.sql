-- Verbs that must take one round trip, or that several statements share. Written as functions because a client that dies in the
-- middle of a transaction would leave rows locked until its connection is found dead, and SKIP LOCKED would hide them meanwhile.
-- Each statement of a volatile function sees what was committed before it began: lock first, then read.
-- Where an index must be used, other plans are switched off: a plan is made once and the tables grow and shrink by millions. Rows are
-- addressed by arrays of ids, or one by one (lateral … offset 0), never by a join with a table: after ANALYZE of an empty table the
-- planner expects one row in it, and a nested loop over 20,000 took 15 s instead of 0.5.

-- The store's time, for conditions: the same within a statement, so an index can be searched by it.
create function duetime.clock() returns bigint language sql stable parallel safe as
$$ select (extract(epoch from statement_timestamp()) * 1000000)::bigint $$;

-- The store's time at this very moment.
create function duetime.moment() returns bigint language sql volatile as
$$ select (extract(epoch from clock_timestamp()) * 1000000)::bigint $$;

-- The same, for positions. Call it after the transaction has its number and the lock on `due`: see `look`. Whoever finds the clock behind
-- the horizon tells it at once to all who remember floors, whatever becomes of this transaction: they may lie above the place that it is
-- about to write. The horizon is read first: it is never ahead of a clock that is read later, unless that was set back.
create function duetime.present() returns bigint language plpgsql volatile as $$
declare
    v_horizon bigint := (select h.last_value from duetime.horizon as h);
    v_now bigint := duetime.moment();
begin
    if v_now < v_horizon then
        perform nextval(s.tableoid) from duetime.set_backs as s;
        perform setval(h.tableoid, v_now) from duetime.horizon as h;
        perform nextval(s.tableoid) from duetime.set_backs as s;  -- somebody may have looked between the two, whose horizon is gone now
    end if;
    return v_now;
end $$;

-- How whoever puts places into `due` begins: the number of its transaction, then the lock by which looks know it, then the clock.
create function duetime.begin_adding(p_now bigint) returns bigint language plpgsql volatile as $$
begin
    perform pg_current_xact_id();
    lock table duetime.due in row exclusive mode;
    return coalesce(p_now, duetime.present());
end $$;

-- Where claims of a lane begin.
create view duetime.lane_floor as
select l.id, case when l.set_backs = s.last_value then l.floor else 0 end as floor from duetime.lane as l cross join duetime.set_backs as s;

-- Make the table that holds what finished in a span of time. Attaching lets others read and write meanwhile. One that was detached,
-- because its time was over, and not dropped yet, is attached again if the clock was set back so far.
-- It runs with the rights of the schema's owner, so that workers need not have them; temporary tables come last in the path, or a caller could
-- put its own in the place of the server's.
create function duetime.make_partition(p_parent text, p_from bigint, p_to bigint) returns void language plpgsql
security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_name text := p_parent || '_' || to_char(to_timestamp(p_from / 1000000) at time zone 'UTC', 'YYYYMMDD');
    v_table regclass := to_regclass(format('%I.%I', 'duetime', v_name));
begin
    if v_table is not null and exists (select from pg_inherits as i where i.inhrelid = v_table) then
        return;
    end if;
    perform pg_advisory_xact_lock(hashtextextended('duetime' || '.' || v_name, 0));
    -- asked of the table itself: what this session remembers of names may be older than the lock
    select c.oid into v_table from pg_class as c join pg_namespace as n on n.oid = c.relnamespace where n.nspname = 'duetime' and c.relname = v_name;
    if v_table is null then
        execute format('create table %I.%I (like %I.%I including defaults including constraints)', 'duetime', v_name, 'duetime', p_parent);
    elsif exists (select from pg_inherits as i where i.inhrelid = v_table) then
        return;
    end if;
    execute format('alter table %I.%I attach partition %I.%I for values from (%s) to (%s)',
        'duetime', p_parent, 'duetime', v_name, p_from, p_to);
end $$;

-- Whether any of these ids may have finished. p_least is the least of them; no task with such an id can have finished before p_since.
-- New ids are almost always greater than all that have finished, and to know that takes one look at the end of each index.
create function duetime.may_be_known(p_least uuid, p_since bigint) returns boolean language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off as $$
begin
    return coalesce(p_least <= (select h.id from duetime.history as h where h.finished_at >= p_since order by h.id desc limit 1), false);
end $$;

-- Which of these ids are of tasks that run, or wait for others. Who inserts their places first and asks then misses nothing: what has left
-- `due` in the meantime stands in a claim, or in history, which is to be looked at after this.
create function duetime.underway(p_least uuid, p_ids uuid[]) returns uuid[] language plpgsql volatile
set enable_seqscan = off set jit = off as $$
begin
    return array(
        select r.id from (select c.tasks, c.done from duetime.claim as c where c.last_id >= p_least offset 0) as c
        cross join lateral unnest(c.tasks) with ordinality as r (id, place)
        where r.id >= p_least and (r.id in (select unnest(p_ids))) is true and get_bit(c.done, r.place::integer - 1) = 0
        union all
        select h.id from duetime.held as h where h.id >= p_least and (h.id in (select unnest(p_ids))) is true);
end $$;

-- Remember that ids are ahead of the moment at which their tasks are submitted, in the transaction that adds them: whoever sees the tasks sees
-- this as well. Generously, so that it is written a few times only: up to the next power of two, and for all time if it is a second at most,
-- which clocks of different machines often are apart. Clocks that are wrong by more are put right one day, so for an hour at least.
create function duetime.note_ahead(p_newest bigint, p_now bigint) returns void language plpgsql as $$
declare
    v_lead bigint := 16384;
begin
    if exists (select from duetime.ahead as a where a.lead >= p_newest - p_now and a.until > p_newest) then
        return;
    end if;
    while v_lead < p_newest - p_now loop
        v_lead := v_lead * 2;
    end loop;
    insert into duetime.ahead (lead, until)
    values (v_lead, case when v_lead <= 1048576 then 9223372036854775807 else p_newest + greatest(v_lead, 3600000000) end);
end $$;

-- The greatest id that a task can have which was submitted before an instant: ids begin with 48 bits of milliseconds.
create function duetime.last_id_before(p_instant bigint) returns uuid language plpgsql stable parallel safe as $$
declare
    v_instant bigint := least(greatest(p_instant, 1), 281474976710656000);
begin
    v_instant := greatest(v_instant, (select max(least(v_instant + a.lead, a.until)) from duetime.ahead as a));
    return (lpad(to_hex(least((v_instant - 1) / 1000, 281474976710655)), 12, '0') || repeat('f', 20))::uuid;
end $$;

-- Add tasks that wait for time alone and are most probably new; if one is not, all are refused. p_newest is the time in the greatest id.
-- An array that is null stands for nulls; lanes, handlers and submitters of one element stand for all.
create function duetime.add_new(
    p_now bigint, p_least uuid, p_since bigint, p_newest bigint, p_ids uuid[], p_lanes integer[], p_handlers text[], p_payloads text[], p_dues bigint[],
    p_delays bigint[], p_submitters text[], p_keys text[], p_expiries bigint[], p_expiries_in bigint[], p_timeouts double precision[], p_retries text[], p_metas text[],
    p_schedules text[], p_planned bigint[]
) returns bigint language plpgsql set enable_seqscan = off set jit = off as $$
declare
    v_now bigint;
begin
    v_now := duetime.begin_adding(p_now);
    if p_newest > v_now then
        perform duetime.note_ahead(p_newest, v_now);
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'a transaction with an old view cannot know what is new' using errcode = 'DT001';
    end if;
    if exists (select from unnest(p_lanes) as u (lane) where not exists (select from duetime.lane as l where l.id = u.lane)) then
        raise exception 'a lane is gone' using errcode = 'DT004';  -- by a fail-over
    end if;
    insert into duetime.due (lane, pos, id, due_at, expires_at, attempt, tries, crashes, size, payload, submitted_at, submitted_by)
    select coalesce(w.lane, p_lanes[1]), greatest(d.due_at, v_now), w.id, d.due_at,
        coalesce(w.expires_at, case when w.expires_in is not null then least(d.due_at + w.expires_in, 253402300799000000) end), 0, 0, 0, c.size,
        case when c.plain then w.payload end, case when c.plain then v_now end, case when c.plain then coalesce(w.submitted_by, p_submitters[1]) end
    from unnest(p_ids, p_lanes, p_payloads, p_dues, p_delays, p_submitters, p_keys, p_expiries, p_expiries_in, p_timeouts, p_retries, p_metas, p_schedules, p_planned)
        as w (id, lane, payload, due, delay, submitted_by, key, expires_at, expires_in, timeout, retry, meta, schedule, planned_at)
    cross join lateral (select octet_length(w.payload) as size, octet_length(w.payload) <= 1000
        and (w.key, w.expires_at, w.expires_in, w.timeout, w.retry, w.meta, w.schedule, w.planned_at) is null as plain) as c
    cross join lateral (select coalesce(w.due, least(v_now + coalesce(w.delay, 0), 253402300799000000)) as due_at) as d;
    if not (p_keys is null and p_expiries is null and p_expiries_in is null and p_timeouts is null and p_retries is null and p_metas is null
        and p_schedules is null and p_planned is null) or exists (select from unnest(p_payloads) as w (payload) where octet_length(w.payload) > 1000) then
        insert into duetime.task (id, lane, handler, key, payload, due_at, submitted_at, submitted_by, expires_at, timeout, retry, meta, schedule, planned_at)
        select w.id, coalesce(w.lane, p_lanes[1]), coalesce(w.handler, p_handlers[1]), w.key, w.payload, d.due_at, v_now,
            coalesce(w.submitted_by, p_submitters[1]),
            coalesce(w.expires_at, case when w.expires_in is not null then least(d.due_at + w.expires_in, 253402300799000000) end),
            w.timeout, w.retry, w.meta, w.schedule, w.planned_at
        from unnest(p_ids, p_lanes, p_handlers, p_payloads, p_dues, p_delays, p_submitters, p_keys, p_expiries, p_expiries_in, p_timeouts, p_retries,
            p_metas, p_schedules, p_planned)
            as w (id, lane, handler, payload, due, delay, submitted_by, key, expires_at, expires_in, timeout, retry, meta, schedule, planned_at)
        cross join lateral (select coalesce(w.due, least(v_now + coalesce(w.delay, 0), 253402300799000000)) as due_at) as d
        where not (octet_length(w.payload) <= 1000
            and (w.key, w.expires_at, w.expires_in, w.timeout, w.retry, w.meta, w.schedule, w.planned_at) is null);
    end if;
    -- after the inserts, which wait for whoever is just taking or ending a task with such an id: only then that can be seen
    if duetime.underway(p_least, p_ids) <> '{}' then
        raise exception 'some of these tasks are stored already' using errcode = 'DT001';
    end if;
    if duetime.may_be_known(p_least, p_since) then  -- not one condition: to begin the second look alone takes longer than the first
        if exists (select from duetime.history as h where h.id = any (p_ids) and h.finished_at >= p_since) then
            raise exception 'some of these tasks are stored already' using errcode = 'DT001';
        end if;
    end if;
    if cardinality(p_lanes) = 1 then
        insert into duetime.tally (lane, state, n) values (p_lanes[1], 'live', cardinality(p_ids));
    else
        insert into duetime.tally (lane, state, n) select l, 'live', count(*) from unnest(p_lanes) as l group by l;
    end if;
    return v_now;
end $$;

-- The same, and wake up who listens, in a transaction of its own after the commit: one way to the server and back less for a task that somebody
-- waits for. That transaction need not be on disk before it ends, and so holds the server's lock of all NOTIFYs for a moment only.
create procedure duetime.add_new_and_tell(
    p_now bigint, p_least uuid, p_since bigint, p_newest bigint, p_ids uuid[], p_lanes integer[], p_handlers text[], p_payloads text[], p_dues bigint[],
    p_delays bigint[], p_submitters text[], p_keys text[], p_expiries bigint[], p_expiries_in bigint[], p_timeouts double precision[], p_retries text[], p_metas text[],
    p_schedules text[], p_planned bigint[], p_channel text, p_message text, inout p_at bigint
) language plpgsql as $$
begin
    p_at := duetime.add_new(p_now, p_least, p_since, p_newest, p_ids, p_lanes, p_handlers, p_payloads, p_dues, p_delays, p_submitters, p_keys, p_expiries,
        p_expiries_in, p_timeouts, p_retries, p_metas, p_schedules, p_planned);
    commit;
    perform set_config('synchronous_commit', 'off', true), pg_notify(p_channel, p_message);
end $$;

-- Add what can be added of these tasks, which wait for time alone, and give their ids: those whose id is stored already or whose key is held
-- are left out. Otherwise as `add_new`.
create function duetime.add(
    p_now bigint, p_least uuid, p_since bigint, p_newest bigint, p_ids uuid[], p_lanes integer[], p_handlers text[], p_payloads text[], p_dues bigint[],
    p_delays bigint[], p_submitters text[], p_keys text[], p_expiries bigint[], p_expiries_in bigint[], p_timeouts double precision[], p_retries text[], p_metas text[],
    p_schedules text[], p_planned bigint[]
) returns text[] language plpgsql set enable_seqscan = off set jit = off as $$
declare
    v_now bigint;
    v_known uuid[] := '{}';
    v_stored uuid[];
    v_added uuid[];
begin
    v_now := duetime.begin_adding(p_now);
    if p_newest > v_now then
        perform duetime.note_ahead(p_newest, v_now);
    end if;
    if current_setting('transaction_isolation') = 'read committed'  -- others need not see a lane that was just made
        and exists (select from unnest(p_lanes) as u (lane) where not exists (select from duetime.lane as l where l.id = u.lane)) then
        raise exception 'a lane is gone' using errcode = 'DT004';  -- by a fail-over
    end if;
    if duetime.may_be_known(p_least, p_since) then
        v_known := array(select h.id from duetime.history as h where h.id = any (p_ids) and h.finished_at >= p_since);
    end if;
    -- left out beforehand, and not only where the inserts would meet them: who only repeats what is there must not lock it
    v_known := v_known || array(select d.id from duetime.due as d where d.id = any (p_ids)) || duetime.underway(p_least, p_ids);
    with wish as (
        select w.*, coalesce(w.due, least(v_now + coalesce(w.delay, 0), 253402300799000000)) as due_at
        from unnest(p_ids, p_lanes, p_handlers, p_payloads, p_dues, p_delays, p_submitters, p_keys, p_expiries, p_expiries_in, p_timeouts,
            p_retries, p_metas, p_schedules, p_planned)
            as w (id, lane, handler, payload, due, delay, submitted_by, key, expires_at, expires_in, timeout, retry, meta, schedule, planned_at)
        where v_known = '{}' or (w.id in (select unnest(v_known))) is not true
    ), stored as (
        insert into duetime.task (id, lane, handler, key, payload, due_at, submitted_at, submitted_by, expires_at, timeout, retry, meta,
            schedule, planned_at)
        select w.id, coalesce(w.lane, p_lanes[1]), coalesce(w.handler, p_handlers[1]), w.key, w.payload, w.due_at, v_now,
            coalesce(w.submitted_by, p_submitters[1]),
            coalesce(w.expires_at, case when w.expires_in is not null then least(w.due_at + w.expires_in, 253402300799000000) end),
            w.timeout, w.retry, w.meta, w.schedule, w.planned_at
        from wish as w
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
        -- the inserts may have waited for somebody who was just taking or ending such a task
        v_known := duetime.underway(p_least, v_added);
        if duetime.may_be_known(p_least, p_since) then
            v_known := v_known || array(select h.id from duetime.history as h where h.id = any (v_added) and h.finished_at >= p_since);
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

-- The first places of each lane that are due, at most p_limit of each; lanes without any are left out.
create function duetime.peek(p_now bigint, p_lanes integer[], p_floors bigint[], p_limit integer, p_lead bigint)
returns table (lane integer, places bigint[]) language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
#variable_conflict use_column
declare
    v_until bigint := coalesce(p_now, duetime.clock()) + p_lead;
begin
    return query
    select l.lane, p.places from unnest(p_lanes, p_floors) as l (lane, floor)
    cross join lateral (
        select array_agg(x.pos) as places from (
            select d.pos from duetime.due as d where d.lane = l.lane and d.pos >= l.floor and d.pos <= v_until order by d.pos limit p_limit
        ) as x
    ) as p
    where p.places is not null;
end $$;

-- What is needed to prove how far lanes are empty: a time, the transactions under way, and the first place that is left.
-- A place that appears later was inserted by a transaction that got its number after this one, or that was under way now; and it read the
-- clock after it got its number. So once all up to our own number have ended (a later look's oldest is not below this one's next), every
-- new place lies at or after this look's time. Places under an uncommitted claim are still seen. Our own number, because what the
-- snapshot calls its end is only the last one that has ended: greater ones may be under way.
-- A transaction may be left open that has nothing to do with us. So if the oldest lags, those are counted that hold the lock which everybody
-- has who puts a place here, from before it reads the clock until its places can be seen: who does not hold it now will read the
-- clock later, or has ended, and the places are looked at after that. An old view would not show them, so only where each statement has its own.
-- The clock may be set back. So the time is not later than the horizon was before we had our number, which everybody sees who gets one
-- later: p_horizon, null if we have none yet. Then the horizon is moved for the next look. A time that is given (p_now) is a test's, which sets
-- it back and tells nobody: it proves nothing.
create function duetime.look(p_now bigint, p_horizon bigint, p_lanes integer[], p_floors bigint[])
returns table (now_at bigint, oldest bigint, next bigint, places bigint[]) language plpgsql volatile
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
    v_now bigint := coalesce(p_now, duetime.clock());
    v_horizon bigint := coalesce(p_horizon, (select h.last_value from duetime.horizon as h));
    v_own bigint := pg_current_xact_id()::text::bigint;
    v_oldest bigint := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
    v_due oid := to_regclass(format('%I.%I', 'duetime', 'due'));
begin
    if p_now is null then
        perform setval(h.tableoid, greatest(v_now, duetime.moment())) from duetime.horizon as h where h.last_value < v_now;
        v_now := least(v_now, v_horizon);
    else
        v_now := 0;
    end if;
    if v_own - v_oldest > 100 and current_setting('transaction_isolation') = 'read committed' then
        with held as materialized (
            select l.locktype, l.transactionid, l.virtualtransaction from pg_locks as l
            where l.granted and (l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' or l.locktype = 'relation' and l.mode = 'RowExclusiveLock'
                and l.relation = v_due and l.database = (select d.oid from pg_database as d where d.datname = current_database()))
        ), adding as materialized (
            select array_agg(h.virtualtransaction) as transactions from held as h where h.locktype = 'relation'
        )
        select coalesce(min(v_own - age(h.transactionid)), v_own) into v_oldest from held as h cross join adding as a
        where h.locktype = 'transactionid' and h.virtualtransaction = any (a.transactions);
    end if;
    return query
    select v_now, v_oldest, v_own + 1, array(
        select (select d.pos from duetime.due as d where d.lane = l.lane and d.pos >= l.floor order by d.pos limit 1)
        from unnest(p_lanes, p_floors) with ordinality as l (lane, floor, place) order by l.place);
end $$;

-- Move tasks into history whose places have been taken away already. p_errors null: none has an error.
create function duetime.record_ends(
    p_now bigint, p_state text, p_errors text[], p_ids uuid[], p_attempts integer[], p_tries integer[], p_crashes integer[]
) returns void language plpgsql
set enable_seqscan = off set enable_hashjoin = on set enable_nestloop = off set enable_mergejoin = off set jit = off as $$
begin
    with gone as (
        delete from duetime.task as t where t.id = any (p_ids) returning t.*
    ), ended as (
        select g.*, e.attempt, e.tries, e.crashes, e.error from gone as g
        join unnest(p_ids, p_attempts, p_tries, p_crashes, p_errors) as e (id, attempt, tries, crashes, error) on e.id = g.id
    ), counted as (
        insert into duetime.tally (lane, state, n)
        select e.lane, s.state, s.sign * count(*) from ended as e cross join (values ('live', -1), (p_state, 1)) as s (state, sign)
        group by e.lane, s.state, s.sign
    )
    insert into duetime.history (id, lane, handler, key, payload, due_at, submitted_at, submitted_by, expires_at, timeout, retry, meta, schedule,
        planned_at, state, attempt, tries, crashes, finished_at, error)
    select e.id, e.lane, e.handler, e.key, e.payload, e.due_at, e.submitted_at, e.submitted_by, e.expires_at, e.timeout, e.retry, e.meta, e.schedule,
        e.planned_at, p_state, e.attempt, e.tries, e.crashes, p_now, e.error
    from ended as e;
end $$;

-- End tasks that wait, whose places have been taken away already. Gives the earliest position that a freed child took.
create function duetime.end_tasks(
    p_now bigint, p_state text, p_error text, p_ids uuid[], p_attempts integer[], p_tries integer[], p_crashes integer[]
) returns bigint language plpgsql set enable_seqscan = off as $$
begin
    perform duetime.record_ends(p_now, p_state, array_fill(p_error, array[cardinality(p_ids)]), p_ids, p_attempts, p_tries, p_crashes);
    if not exists (select from duetime.edge) then
        return null;
    end if;
    delete from duetime.edge as e where e.child = any (p_ids);
    return duetime.follow(p_now, p_ids, array_fill(p_state = 'succeeded', array[cardinality(p_ids)]));
end $$;

-- Let the children of ended tasks go on, or end those in vain, in turn. Gives the earliest position that a freed child took.
-- Children are locked first, in the order of their ids, and then their edges are taken, as everybody does who ends a child: in the
-- other order a parent's end and its child's cancel would wait for each other. Each edge is taken by one transaction only, so none
-- is counted twice or not at all. A generation at a time, because a chain may be longer than the server lets functions call each other.
create function duetime.follow(p_now bigint, p_parents uuid[], p_succeeded boolean[]) returns bigint language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    v_parents uuid[] := p_parents;
    v_succeeded boolean[] := p_succeeded;
    v_children uuid[];
    v_verdicts text[];
    v_of uuid[];
    v_attempts integer[];
    v_tries integer[];
    v_crashes integer[];
    v_errors text[];
    v_earliest bigint;
    v_freed bigint;
begin
    loop
        perform from duetime.held as h
        where h.id in (select e.child from duetime.edge as e where e.parent = any (v_parents)) order by h.id for update;
        with taken as (
            delete from duetime.edge as e using unnest(v_parents, v_succeeded) as p (id, succeeded) where e.parent = p.id
            returning e.child, e.parent, case when e.needs = 'success' and not p.succeeded then 'vain' else 'met' end as verdict
        )
        select array_agg(t.child), array_agg(t.verdict), array_agg(t.parent) into v_children, v_verdicts, v_of from taken as t;
        exit when v_children is null;
        with vain as (
            select v.child, min(v.parent::text) as parent from unnest(v_children, v_verdicts, v_of) as v (child, verdict, parent)
            where v.verdict = 'vain' group by v.child
        ), gone as (
            delete from duetime.held as h using vain as v where h.id = v.child returning h.id, h.attempt, h.tries, h.crashes, json_build_object(
                'type', 'PredecessorFailed', 'message', 'task ' || v.parent || ', whose success it needed, ended otherwise', 'traceback', '')::text as error
        )
        select array_agg(g.id), array_agg(g.attempt), array_agg(g.tries), array_agg(g.crashes), array_agg(g.error)
        into v_parents, v_attempts, v_tries, v_crashes, v_errors from gone as g;
        update duetime.held as h set waiting = h.waiting - m.n
        from (select c.child, count(*) as n from unnest(v_children) as c (child) group by c.child) as m where h.id = m.child;
        with freed as (
            delete from duetime.held as h where h.id = any (v_children) and h.waiting <= 0 returning h.*
        ), placed as (
            insert into duetime.due (lane, pos, id, due_at, expires_at, attempt, tries, crashes)
            select f.lane, greatest(f.due_at, p_now), f.id, f.due_at, f.expires_at, f.attempt, f.tries, f.crashes from freed as f returning pos
        )
        select min(p.pos) into v_freed from placed as p;
        v_earliest := least(v_earliest, v_freed);
        exit when v_parents is null;
        perform duetime.record_ends(p_now, 'cancelled', v_errors, v_parents, v_attempts, v_tries, v_crashes);
        delete from duetime.edge as e where e.child = any (v_parents);
        v_succeeded := array_fill(false, array[cardinality(v_parents)]);
    end loop;
    return v_earliest;
end $$;

-- End those of these tasks that wait. Gives their ids.
create function duetime.end_waiting(p_now bigint, p_state text, p_ids uuid[]) returns uuid[] language plpgsql
set enable_seqscan = off as $$
declare
    v_now bigint;
    v_ids uuid[];
    v_attempts integer[];
    v_tries integer[];
    v_crashes integer[];
begin
    v_now := duetime.begin_adding(p_now);
    perform duetime.lock_waiting(p_ids);
    with taken as (
        delete from duetime.held as h where h.id = any (p_ids) returning h.id, h.attempt, h.tries, h.crashes
    ), placed as (
        delete from duetime.due as d where d.id = any (p_ids) returning d.*
    ), written as (
        insert into duetime.task (id, lane, handler, payload, due_at, submitted_at, submitted_by)
        select p.id, p.lane, l.handler, p.payload, p.due_at, p.submitted_at, p.submitted_by
        from placed as p join duetime.lane as l on l.id = p.lane where p.payload is not null
    )
    select array_agg(x.id), array_agg(x.attempt), array_agg(x.tries), array_agg(x.crashes) into v_ids, v_attempts, v_tries, v_crashes
    from (select * from taken union all select p.id, p.attempt, p.tries, p.crashes from placed as p) as x;
    if v_ids is not null then
        perform duetime.end_tasks(v_now, p_state, null, v_ids, v_attempts, v_tries, v_crashes);
    end if;
    return coalesce(v_ids, '{}');
end $$;

-- One element in place of many that are all the same.
create function duetime.shared(p_values anyarray) returns anyarray language sql immutable parallel safe as
$$ select case when p_values = array_fill(p_values[1], array[cardinality(p_values)]) then p_values[1:1] else p_values end $$;

-- The claims that hold some of these tasks: few of them are compared with each place, many are hashed.
create function duetime.holders(p_ids uuid[]) returns table (worker text, number bigint) language plpgsql stable rows 10 set enable_sort = on as $$
declare
    v_least uuid := (select u.id from unnest(p_ids) as u (id) order by u.id limit 1);
    v_greatest uuid := (select u.id from unnest(p_ids) as u (id) order by u.id desc limit 1);
begin
    if cardinality(p_ids) <= 8 then
        return query select c.worker, c.number from duetime.claim as c
        where c.last_id >= v_least and c.first_id <= v_greatest and exists (select from unnest(p_ids) as u (id) where u.id = any (c.tasks));
    else
        return query select c.worker, c.number from duetime.claim as c
        where c.last_id >= v_least and c.first_id <= v_greatest
        and exists (select from unnest(c.tasks) as t (id) where (t.id in (select unnest(p_ids))) is true);
    end if;
end $$;

-- Those of these tasks that run, with all that their claims tell of them.
create function duetime.running(p_ids uuid[]) returns setof duetime.open_place language plpgsql stable rows 10 as $$
begin
    return query select r.* from duetime.holders(p_ids) as h
    cross join lateral (select x.* from duetime.open_place as x where x.worker = h.worker and x.number = h.number offset 0) as r
    where (r.id in (select unnest(p_ids))) is true;
end $$;

-- Keep those of these tasks that live from ending until this transaction has ended, and name them. First those that stand whole in `due`, then
-- those that run: a task goes that way, or gets a row in `task` and keeps it. One that a claim puts back at this very moment may be missed, so
-- who finds a task to live that is not named here asks again. A place that is locked is not claimed, and the ends of a claim's
-- attempts wait for its lock.
create function duetime.lock_parents(p_ids uuid[]) returns uuid[] language plpgsql set enable_seqscan = off as $$
declare
    v_ids uuid[];
begin
    v_ids := array(select d.id from duetime.due as d where d.id = any (p_ids) and d.payload is not null order by d.id for key share);
    perform from duetime.claim as c where (c.worker, c.number) in (select h.worker, h.number from duetime.holders(p_ids) as h)
        order by c.worker, c.number for share;
    v_ids := v_ids || array(select r.id from duetime.running(p_ids) as r where r.payload is not null);
    return v_ids || array(select t.id from duetime.task as t where t.id = any (p_ids) order by t.id for key share);
end $$;

-- Neighbouring elements, or the one that stands for all.
create function duetime.part(p_values anyarray, p_first integer, p_last integer) returns anyarray language sql immutable parallel safe as
$$ select case when cardinality(p_values) = 1 then p_values else p_values[p_first : p_last] end $$;

-- Of doubtful tasks whose places this transaction has taken or locked: forget those that run already or have ended, and name them. They were
-- added again by transactions that could not see that.
create function duetime.forget_repeats(p_ids uuid[]) returns uuid[] language plpgsql set enable_seqscan = off as $$
declare
    v_least uuid := (select u.id from unnest(p_ids) as u (id) order by u.id limit 1);
    -- ids begin with milliseconds, and nothing finishes a day before its id was made
    v_since bigint := ('x0000' || replace(left(v_least::text, 13), '-', ''))::bit(64)::bigint * 1000 - 86400000000;
    v_known uuid[] := duetime.underway(v_least, p_ids);
begin
    if duetime.may_be_known(v_least, v_since) then
        v_known := v_known || array(select h.id from duetime.history as h where h.id = any (p_ids) and h.finished_at >= v_since);
    end if;
    with gone as (
        delete from duetime.task as t where t.id = any (v_known) returning t.lane
    )
    insert into duetime.tally (lane, state, n) select g.lane, 'live', -count(*) from gone as g group by g.lane;
    return v_known;
end $$;

-- Lock those of these tasks that wait, in the order in which everybody locks them, and name them. Doubtful ones among them are forgotten, or found to
-- be the only ones; then they stay that, because nobody can add them again while they stand there.
create function duetime.lock_waiting(p_ids uuid[]) returns uuid[] language plpgsql set enable_seqscan = off as $$
declare
    v_held uuid[] := array(select h.id from duetime.held as h where h.id = any (p_ids) order by h.id for update);
    v_due uuid[];
    v_doubtful uuid[];
    v_repeats uuid[] := '{}';
begin
    select array_agg(d.id), array_agg(d.id) filter (where d.doubtful) into v_due, v_doubtful
    from (select x.id, x.doubtful from duetime.due as x where x.id = any (p_ids) order by x.id for update) as d;
    if v_doubtful is not null and current_setting('transaction_isolation') = 'read committed' then
        v_repeats := duetime.forget_repeats(v_doubtful);
        delete from duetime.due as d where d.id = any (v_repeats);
        update duetime.due as d set doubtful = null where d.id = any (v_doubtful);
    end if;
    return v_held || array(select u.id from unnest(v_due) as u (id) where u.id <> all (v_repeats));
end $$;

-- Hand tasks to a worker that are due, or will be within p_lead. p_starts are remembered positions, p_floors proven ones: when the first bring too little, the second
-- are tried. p_quotas bound each lane, p_total all; p_watched are the lanes whose next position is wanted, and a `look` at
-- them if p_watched_floors is given. `how` says how it went (0 done, 1 gates
-- or lanes have changed or the clock was set back: read them and ask again, 2 the worker is not registered, 3 closed after a fail-over), `next_at` when to look again,
-- `last_pos` the last position taken. The tasks come as columns, which cost a third less than rows, here and in the client; a column of
-- one element stands for as many of it, and one that is null for nulls.
create function duetime.claim(
    p_now bigint, p_worker text, p_number bigint, p_lanes integer[], p_starts bigint[], p_floors bigint[], p_quotas integer[], p_total integer,
    p_watched integer[], p_watched_floors bigint[], p_gates_version bigint, p_lanes_version bigint, p_incarnation text, p_lead bigint
) returns table (
    how integer, now_at bigint, next_at bigint, last_pos bigint, seen_at bigint, oldest bigint, next bigint, places bigint[], ids text[], lanes integer[], payloads text[], attempts integer[], tries integer[],
    crashes integer[], dues bigint[], sinces bigint[], submitted bigint[], submitters text[], expiries bigint[], timeouts double precision[],
    retries text[], metas text[], keys text[], schedules text[], planned bigint[]
) language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
    v_now bigint := coalesce(p_now, duetime.clock());
    v_horizon bigint := (select h.last_value from duetime.horizon as h);  -- before this transaction gets its number: see `look`
    v_until bigint := v_now + p_lead;
    v_incarnation text := p_incarnation;
    v_control record;
    v_starts bigint[] := p_starts;
    v_count integer := 0;
    v_ids uuid[]; v_lanes integer[]; v_places bigint[]; v_dues bigint[]; v_expiries bigint[];
    v_attempts integer[]; v_tries integer[]; v_crashes integer[];
    v_late boolean := false;
    v_doubtful uuid[];
    v_gone uuid[] := '{}';
    v_whole boolean := true;
    v_some_whole boolean := false;
    v_special boolean;
    v_bytes bigint := 0;
    v_fitting integer;
    v_present bigint;
begin
    now_at := v_now;
    if v_incarnation is null then  -- a statement of its own: not every role may call this, and the right is asked for whether it is called or not
        v_incarnation := substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8);
    end if;
    perform from duetime.worker as w where w.id = p_worker for key share;
    if not found then
        how := 2;
        return next;
        return;
    end if;
    select * into v_control from duetime.control;
    if v_control.incarnation <> v_incarnation and v_incarnation <> 'unknown' then
        -- claims that are gone have put places back below floors that were proved before
        perform nextval(s.tableoid) from duetime.set_backs as s where v_control.incarnation <> '';
        update duetime.control as c set incarnation = v_incarnation, open_at = case when c.incarnation = '' then 0
            else v_now + (select (max(w.lease) * 1200000)::bigint from duetime.worker as w) end
        where c.incarnation <> v_incarnation;
        select * into v_control from duetime.control;
    elsif v_now < v_control.open_at then
        -- further away than it was ever set: the clock was set back, and how much of the time has passed cannot be known
        update duetime.control as c set open_at = v_now + l.span
        from (select (max(w.lease) * 1200000)::bigint as span from duetime.worker as w) as l where c.open_at > v_now + l.span;
        select * into v_control from duetime.control;
    end if;
    if v_now < v_control.open_at or v_control.gates_version <> p_gates_version
        or v_control.lanes_version + (select s.last_value from duetime.set_backs as s) <> p_lanes_version then
        how := case when v_now < v_control.open_at then 3 else 1 end;
        next_at := v_control.open_at;
        return next;
        return;
    end if;
    loop
        with taken as (
            delete from duetime.due as d where d.ctid = any (array(
                select x.ctid from unnest(p_lanes, v_starts, p_quotas) as l (lane, start, quota)
                cross join lateral (
                    select e.ctid from duetime.due as e where e.lane = l.lane and e.pos >= l.start and e.pos <= v_until
                    order by e.pos limit l.quota for update skip locked
                ) as x
                limit p_total - v_count))
            returning d.*
        )
        select v_ids || array_agg(t.id), v_lanes || array_agg(t.lane), v_places || array_agg(t.pos), v_dues || array_agg(t.due_at),
            v_expiries || array_agg(t.expires_at), v_attempts || array_agg(t.attempt + 1), v_tries || array_agg(t.tries),
            v_crashes || array_agg(t.crashes), payloads || array_agg(t.payload), submitted || array_agg(t.submitted_at),
            submitters || array_agg(t.submitted_by), v_count + count(*), v_late or coalesce(bool_or(t.expires_at <= v_now), false),
            v_whole and coalesce(bool_and(t.payload is not null), true), v_some_whole or coalesce(bool_or(t.payload is not null), false),
            v_bytes + coalesce(sum(coalesce(t.size, 1000000)), 0), v_doubtful || array_agg(t.id) filter (where t.doubtful)
        into v_ids, v_lanes, v_places, v_dues, v_expiries, v_attempts, v_tries, v_crashes, payloads, submitted, submitters, v_count, v_late, v_whole,
            v_some_whole, v_bytes, v_doubtful
        from (select * from taken order by lane, pos, id) as t;
        exit when v_count = p_total or v_starts = p_floors;
        v_starts := p_floors;
    end loop;
    if v_doubtful is not null then
        v_gone := duetime.forget_repeats(v_doubtful);
    end if;
    if v_late then
        v_present := coalesce(p_now, duetime.present());
        perform duetime.end_tasks(v_present, 'expired', null, array_agg(e.id), array_agg(e.attempt - 1), array_agg(e.tries), array_agg(e.crashes))
        from unnest(v_ids, v_expiries, v_attempts, v_tries, v_crashes) as e (id, expires_at, attempt, tries, crashes) where e.expires_at <= v_now;
        v_gone := v_gone || array(select e.id from unnest(v_ids, v_expiries) as e (id, expires_at) where e.expires_at <= v_now);
    end if;
    if v_gone <> '{}' then
        select array_agg(e.id), array_agg(e.lane), array_agg(e.pos), array_agg(e.due_at), array_agg(e.expires_at), array_agg(e.attempt),
            array_agg(e.tries), array_agg(e.crashes), array_agg(e.payload), array_agg(e.submitted_at), array_agg(e.submitted_by)
        into v_ids, v_lanes, v_places, v_dues, v_expiries, v_attempts, v_tries, v_crashes, payloads, submitted, submitters
        from unnest(v_ids, v_lanes, v_places, v_dues, v_expiries, v_attempts, v_tries, v_crashes, payloads, submitted, submitters)
            as e (id, lane, pos, due_at, expires_at, attempt, tries, crashes, payload, submitted_at, submitted_by)
        where (e.id in (select unnest(v_gone))) is not true;
    end if;
    if v_ids is not null and v_bytes > 33554432 then
        -- what would make the reply too long goes back at once; a worker need not have so much in memory either
        select count(*) into v_fitting from (
            select sum(octet_length(coalesce(u.payload, t.payload))) over (order by u.place) as bytes, u.place
            from unnest(v_ids, payloads) with ordinality as u (id, payload, place)
            left join lateral (select x.payload from duetime.task as x where x.id = u.id offset 0) as t on true
        ) as s where s.bytes <= 33554432 or s.place = 1;
        if v_fitting < cardinality(v_ids) then
            v_present := coalesce(p_now, duetime.present());
            insert into duetime.due (lane, pos, id, due_at, expires_at, attempt, tries, crashes, size, payload, submitted_at, submitted_by)
            select b.lane, greatest(b.due_at, v_present), b.id, b.due_at, b.expires_at, b.attempt - 1, b.tries, b.crashes,
                octet_length(b.payload), b.payload, b.submitted_at, b.submitted_by
            from unnest(v_ids, v_lanes, v_dues, v_expiries, v_attempts, v_tries, v_crashes, payloads, submitted, submitters) with ordinality
                as b (id, lane, due_at, expires_at, attempt, tries, crashes, payload, submitted_at, submitted_by, place)
            where b.place > v_fitting;
            v_ids := v_ids[1 : v_fitting]; v_lanes := v_lanes[1 : v_fitting]; v_places := v_places[1 : v_fitting]; v_dues := v_dues[1 : v_fitting];
            v_expiries := v_expiries[1 : v_fitting]; v_attempts := v_attempts[1 : v_fitting]; v_tries := v_tries[1 : v_fitting];
            v_crashes := v_crashes[1 : v_fitting]; payloads := payloads[1 : v_fitting]; submitted := submitted[1 : v_fitting];
            submitters := submitters[1 : v_fitting];
            next_at := v_now;
        end if;
    end if;
    if v_ids is not null then
        lanes := duetime.shared(v_lanes);
        attempts := duetime.shared(v_attempts);
        tries := duetime.shared(v_tries);
        crashes := duetime.shared(v_crashes);
        submitted := duetime.shared(submitted);
        submitters := duetime.shared(submitters);
        insert into duetime.claim (worker, number, claimed_at, open, done, cancel, first_id, last_id, tasks, lanes, dues, expiries, attempts, tries,
            crashes, payloads, submitted, submitters)
        values (p_worker, p_number, v_now, cardinality(v_ids), repeat('0', cardinality(v_ids))::varbit, repeat('0', cardinality(v_ids))::varbit,
            (select u.id from unnest(v_ids) as u (id) order by u.id limit 1), (select u.id from unnest(v_ids) as u (id) order by u.id desc limit 1),
            v_ids, lanes, v_dues, duetime.shared(v_expiries), attempts, tries, crashes, case when v_some_whole then payloads end,
            case when v_some_whole then submitted end, case when v_some_whole then submitters end);
        if v_whole then
            sinces := v_dues;
        else
            select array_agg(coalesce(u.payload, t.payload)), array_agg(coalesce(t.due_at, u.due_at)),
                array_agg(coalesce(t.submitted_at, u.submitted_at, submitted[1])), array_agg(coalesce(t.submitted_by, u.submitted_by, submitters[1])),
                bool_or(not (t.expires_at, t.timeout, t.retry, t.meta, t.key, t.schedule, t.planned_at) is null)
            into payloads, sinces, submitted, submitters, v_special
            from unnest(v_ids, v_dues, payloads, submitted, submitters) as u (id, due_at, payload, submitted_at, submitted_by)
            left join lateral (select x.* from duetime.task as x where x.id = u.id offset 0) as t on true;
            submitted := duetime.shared(submitted);
            submitters := duetime.shared(submitters);
            if v_special then
                select array_agg(t.expires_at), array_agg(t.timeout), array_agg(t.retry), array_agg(t.meta), array_agg(t.key), array_agg(t.schedule),
                    array_agg(t.planned_at)
                into expiries, timeouts, retries, metas, keys, schedules, planned
                from unnest(v_ids) as u (id) left join lateral (select x.* from duetime.task as x where x.id = u.id offset 0) as t on true;
            end if;
        end if;
        ids := v_ids;
        dues := nullif(v_dues, sinces);
        last_pos := least(v_places[cardinality(v_places)], v_now);  -- what is added from now on may stand before those that are not due yet
    end if;
    select least(next_at, min(n.pos) - p_lead) into next_at from unnest(p_watched) as l (lane)
    cross join lateral (select d.pos from duetime.due as d where d.lane = l.lane and d.pos > v_until order by d.pos limit 1) as n;
    if p_watched_floors is not null then
        -- our own transaction counts as under way, and what it has taken as gone: it is, when this reply arrives
        select l.now_at, l.oldest, l.next, l.places into seen_at, oldest, next, places from duetime.look(p_now, v_horizon, p_watched, p_watched_floors) as l;
    end if;
    how := 0;
    return next;
end $$;

-- Those of the settlements that are the worker's to say: it holds the attempt at this very number, and it has not ended.
-- The claims are locked by the caller.
create function duetime.match(
    p_now bigint, p_worker text, p_claims bigint[], p_ids uuid[], p_attempts integer[], p_started bigint[], p_finished bigint[], p_states text[],
    p_outcomes text[], p_tries integer[], p_crashes integer[], p_dues bigint[], p_results text[], p_errors text[]
) returns table (
    said integer, number bigint, open integer, place integer, id uuid, lane integer, expires_at bigint, attempt integer, tries integer, crashes integer,
    started_at bigint, finished_at bigint, due_at bigint, result text, error text, outcome text, state text, payload text, since_at bigint,
    submitted_at bigint, submitted_by text
) language plpgsql stable rows 500
set enable_hashjoin = on set enable_nestloop = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
begin
    return query
    with running as materialized (
        select p.* from duetime.open_place as p where p.worker = p_worker and (p_claims is null or p.number = any (p_claims))
    )
    select s.place::integer, r.number, r.open, r.place, r.id, r.lane, r.expires_at, r.attempt, coalesce(s.tries, r.tries),
        coalesce(s.crashes, r.crashes), s.started_at, s.finished_at,
        -- one that was claimed before it was due, and still is not, keeps its due time
        greatest(coalesce(s.due_at, p_now), case when r.due_at > r.claimed_at and r.due_at > p_now then r.due_at end), s.result, s.error,
        coalesce(s.outcome, 'succeeded'),
        case when s.state = 'pending' and r.cancelling then 'cancelled' else coalesce(s.state, 'succeeded') end,
        r.payload, r.due_at, r.submitted_at, r.submitted_by
    from unnest(p_ids, p_attempts, p_started, p_finished, p_states, p_outcomes, p_tries, p_crashes, p_dues, p_results, p_errors) with ordinality
        as s (id, attempt, started_at, finished_at, state, outcome, tries, crashes, due_at, result, error, place)
    join running as r on r.id = s.id and r.attempt = s.attempt;
end $$;

-- Record how attempts of a worker ended. Nulls stand for what the claim already says, and for success. p_claims null: look into all claims.
-- Gives the places (from 1) of what was accepted, null if all were; the rest is not this worker's at this number.
create function duetime.settle(
    p_now bigint, p_worker text, p_claims bigint[], p_ids uuid[], p_attempts integer[], p_started bigint[], p_finished bigint[], p_states text[],
    p_outcomes text[], p_tries integer[], p_crashes integer[], p_dues bigint[], p_results text[], p_errors text[]
) returns table (accepted integer[], finals integer, earliest bigint) language plpgsql
set enable_seqscan = off set enable_hashjoin = on set enable_nestloop = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
    v_now bigint;
    v_accepted integer[];
    v_finals uuid[];
    v_succeeded boolean[];
    v_earliest bigint;
begin
    v_now := duetime.begin_adding(p_now);
    perform from duetime.claim as c where c.worker = p_worker and (p_claims is null or c.number = any (p_claims)) order by c.number for update;
    with ended as materialized (
        select * from duetime.match(v_now, p_worker, p_claims, p_ids, p_attempts, p_started, p_finished, p_states, p_outcomes, p_tries, p_crashes,
            p_dues, p_results, p_errors)
    ), batch as (
        select e.number, count(*) as n, count(*) = e.open as whole from ended as e group by e.number, e.open
    ), closed as (
        delete from duetime.claim as c using batch as b where c.worker = p_worker and c.number = b.number and b.whole
    ), marked as (
        update duetime.claim as c set open = c.open - b.n,
            done = (select bit_or(set_bit(c.done, e.place - 1, 1)) from ended as e where e.number = c.number)
        from batch as b where c.worker = p_worker and c.number = b.number and not b.whole
    ), moved as (
        delete from duetime.task as t where t.id = any (array(select e.id from ended as e where e.state <> 'pending' and e.payload is null)) returning t.*
    ), kept as (
        insert into duetime.history (id, lane, handler, key, payload, due_at, submitted_at, submitted_by, expires_at, timeout, retry, meta, schedule,
            planned_at, state, outcome, attempt, tries, crashes, worker, started_at, finished_at, result, error)
        select m.id, m.lane, m.handler, m.key, m.payload, m.due_at, m.submitted_at, m.submitted_by, m.expires_at, m.timeout, m.retry, m.meta, m.schedule,
            m.planned_at, e.state, e.outcome, e.attempt, e.tries, e.crashes, p_worker, e.started_at, e.finished_at, e.result, e.error
        from moved as m join ended as e on e.id = m.id
        union all
        select e.id, e.lane, l.handler, null, e.payload, e.since_at, e.submitted_at, e.submitted_by, null, null, null, null, null, null, e.state, e.outcome,
            e.attempt, e.tries, e.crashes, p_worker, e.started_at, e.finished_at, e.result, e.error
        from ended as e join duetime.lane as l on l.id = e.lane where e.state <> 'pending' and e.payload is not null
    ), written as (
        insert into duetime.task (id, lane, handler, payload, due_at, submitted_at, submitted_by)
        select e.id, e.lane, l.handler, e.payload, e.since_at, e.submitted_at, e.submitted_by
        from ended as e join duetime.lane as l on l.id = e.lane where e.state = 'pending' and e.payload is not null
        on conflict do nothing
    ), again as (
        insert into duetime.due as d (lane, pos, id, due_at, expires_at, attempt, tries, crashes)
        select e.lane, greatest(e.due_at, v_now), e.id, e.due_at, e.expires_at, e.attempt, e.tries, e.crashes
        from ended as e where e.state = 'pending'
        -- a doubtful one stands there, and stands for both from now on, in its own lane
        on conflict (id) do update set pos = excluded.pos, due_at = excluded.due_at, expires_at = excluded.expires_at, attempt = excluded.attempt,
            tries = excluded.tries, crashes = excluded.crashes, doubtful = false
        returning d.id, d.doubtful is null as alone
    ), told as (
        insert into duetime.attempt (task, attempt, outcome, worker, started_at, finished_at, error)
        select e.id, e.attempt, e.outcome, p_worker, e.started_at, e.finished_at, e.error from ended as e where e.state = 'pending'
    ), counted as (
        insert into duetime.tally (lane, state, n)
        select e.lane, 'live', -count(*) from ended as e where e.state <> 'pending' or e.id in (select a.id from again as a where not a.alone) group by e.lane
        union all
        select e.lane, e.state, count(*) from ended as e where e.state <> 'pending' group by e.lane, e.state
    )
    select array_agg(e.said), array_agg(e.id) filter (where e.state <> 'pending'),
        array_agg(e.state = 'succeeded') filter (where e.state <> 'pending'), min(greatest(e.due_at, v_now)) filter (where e.state = 'pending')
    into v_accepted, v_finals, v_succeeded, v_earliest from ended as e;
    if exists (select from duetime.progress) then
        delete from duetime.progress as p where p.id = any (p_ids);
    end if;
    if v_finals is not null and exists (select from duetime.edge) then
        v_earliest := least(v_earliest, duetime.follow(v_now, v_finals, v_succeeded));
    end if;
    return query select case when cardinality(v_accepted) = cardinality(p_ids) then null else coalesce(v_accepted, '{}') end,
        coalesce(cardinality(v_finals), 0), v_earliest;
end $$;

-- Record that attempts succeeded that have neighbouring places in claims, and have nothing to say: what most settles are. Nothing has to be
-- matched, because a worker uses no number twice and the places of a claim never change: two thirds of the cost of `settle`. Each claim is
-- named once, in rising order, as everybody locks them; p_started and p_finished are in the order of the places. A place that is not open
-- refuses all, and the caller takes `settle` instead.
create function duetime.settle_slices(
    p_now bigint, p_worker text, p_claims bigint[], p_firsts integer[], p_sizes integer[], p_started bigint[], p_finished bigint[]
) returns bigint language plpgsql
set enable_seqscan = off set enable_hashjoin = on set enable_nestloop = off set enable_mergejoin = off set jit = off as $$
declare
    v_now bigint;
    v_slice record;
    v_claim record;
    v_last integer;
    v_before integer := 0;
    v_handler text;
    v_rows uuid[];
    v_earliest bigint;
begin
    v_now := duetime.begin_adding(p_now);
    for v_slice in select s.* from unnest(p_claims, p_firsts, p_sizes) as s (number, first, size) loop
        v_last := v_slice.first + v_slice.size - 1;
        delete from duetime.claim as c where c.worker = p_worker and c.number = v_slice.number and c.open = v_slice.size
            and substring(c.done from v_slice.first for v_slice.size) = repeat('0', v_slice.size)::varbit
        returning c.tasks[v_slice.first : v_last] as tasks, duetime.part(c.lanes, v_slice.first, v_last) as lanes,
            duetime.part(c.attempts, v_slice.first, v_last) as attempts, duetime.part(c.tries, v_slice.first, v_last) as tries,
            duetime.part(c.crashes, v_slice.first, v_last) as crashes, c.dues[v_slice.first : v_last] as dues,
            c.payloads[v_slice.first : v_last] as payloads, duetime.part(c.submitted, v_slice.first, v_last) as submitted,
            duetime.part(c.submitters, v_slice.first, v_last) as submitters into v_claim;
        if not found then
            update duetime.claim as c set open = c.open - v_slice.size,
                done = overlay(c.done placing repeat('1', v_slice.size)::varbit from v_slice.first)
            where c.worker = p_worker and c.number = v_slice.number
                and substring(c.done from v_slice.first for v_slice.size) = repeat('0', v_slice.size)::varbit
            returning c.tasks[v_slice.first : v_last] as tasks, duetime.part(c.lanes, v_slice.first, v_last) as lanes,
            duetime.part(c.attempts, v_slice.first, v_last) as attempts, duetime.part(c.tries, v_slice.first, v_last) as tries,
            duetime.part(c.crashes, v_slice.first, v_last) as crashes, c.dues[v_slice.first : v_last] as dues,
            c.payloads[v_slice.first : v_last] as payloads, duetime.part(c.submitted, v_slice.first, v_last) as submitted,
            duetime.part(c.submitters, v_slice.first, v_last) as submitters, c.open into v_claim;
            if not found then
                raise exception 'places % to % of claim % of worker % are not all open', v_slice.first, v_last, v_slice.number, p_worker
                    using errcode = 'DT002';
            end if;
            if v_claim.open = 0 then  -- another one ended the others while this one waited for it
                delete from duetime.claim as c where c.worker = p_worker and c.number = v_slice.number;
            end if;
        end if;
        if v_claim.payloads is not null then
            v_handler := case when cardinality(v_claim.lanes) = 1 then (select l.handler from duetime.lane as l where l.id = v_claim.lanes[1]) end;
            insert into duetime.history (id, lane, handler, payload, due_at, submitted_at, submitted_by, state, outcome, attempt, tries, crashes, worker,
                started_at, finished_at)
            select e.id, coalesce(e.lane, v_claim.lanes[1]), coalesce(v_handler, (select l.handler from duetime.lane as l where l.id = e.lane)), e.payload,
                e.due_at, coalesce(e.submitted_at, v_claim.submitted[1]), coalesce(e.submitted_by, v_claim.submitters[1]), 'succeeded', 'succeeded',
                coalesce(e.attempt, v_claim.attempts[1]), coalesce(e.tries, v_claim.tries[1]), coalesce(e.crashes, v_claim.crashes[1]), p_worker,
                e.started_at, e.finished_at
            from unnest(v_claim.tasks, v_claim.lanes, v_claim.dues, v_claim.attempts, v_claim.tries, v_claim.crashes, v_claim.payloads, v_claim.submitted,
                v_claim.submitters, p_started[v_before + 1 : v_before + v_slice.size], p_finished[v_before + 1 : v_before + v_slice.size])
                as e (id, lane, due_at, attempt, tries, crashes, payload, submitted_at, submitted_by, started_at, finished_at)
            where e.payload is not null;
        end if;
        if v_claim.payloads is null or array_position(v_claim.payloads, null) is not null then
            v_rows := case when v_claim.payloads is null then v_claim.tasks
                else array(select e.id from unnest(v_claim.tasks, v_claim.payloads) as e (id, payload) where e.payload is null) end;
            with moved as (
                delete from duetime.task as t where t.id = any (v_rows) returning t.*
            )
            insert into duetime.history (id, lane, handler, key, payload, due_at, submitted_at, submitted_by, expires_at, timeout, retry, meta, schedule,
                planned_at, state, outcome, attempt, tries, crashes, worker, started_at, finished_at)
            select m.id, m.lane, m.handler, m.key, m.payload, m.due_at, m.submitted_at, m.submitted_by, m.expires_at, m.timeout, m.retry, m.meta, m.schedule,
                m.planned_at, 'succeeded', 'succeeded', coalesce(e.attempt, v_claim.attempts[1]), coalesce(e.tries, v_claim.tries[1]),
                coalesce(e.crashes, v_claim.crashes[1]), p_worker, e.started_at, e.finished_at
            from moved as m join unnest(v_claim.tasks, v_claim.attempts, v_claim.tries, v_claim.crashes, p_started[v_before + 1 : v_before + v_slice.size],
                p_finished[v_before + 1 : v_before + v_slice.size]) as e (id, attempt, tries, crashes, started_at, finished_at) on e.id = m.id;
        end if;
        insert into duetime.tally (lane, state, n)
        select l.lane, s.state, s.sign * l.n from (
            select v_claim.lanes[1] as lane, v_slice.size as n where cardinality(v_claim.lanes) = 1
            union all
            select u.lane, count(*) from unnest(v_claim.lanes) as u (lane) where cardinality(v_claim.lanes) > 1 group by u.lane
        ) as l cross join (values ('live', -1), ('succeeded', 1)) as s (state, sign);
        if exists (select from duetime.progress) then
            delete from duetime.progress as p where p.id = any (v_claim.tasks);
        end if;
        if exists (select from duetime.edge) then
            v_earliest := least(v_earliest, duetime.follow(v_now, v_claim.tasks, array_fill(true, array[v_slice.size])));
        end if;
        v_before := v_before + v_slice.size;
    end loop;
    if v_before <> cardinality(p_started) then
        raise exception '% places of worker % have % ends', v_before, p_worker, cardinality(p_started) using errcode = 'DT002';
    end if;
    return v_earliest;
end $$;
