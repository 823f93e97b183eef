-- Handing due tasks to a worker.

-- Hand tasks to a worker that are due, or will be within p_lead. p_lanes are lanes, or roads, which stand for all lanes
-- on them. p_starts are remembered positions, p_floors proven
-- ones: when the first bring too little, the second are tried. p_quotas bound each lane, p_total all; p_watched are
-- the lanes whose next position is wanted, and a `look` at them if p_watched_floors is given. `how` says how it went
-- (0 done, 1 gates or lanes have changed or the clock was set back: read them and ask again, 2 the worker is not
-- registered or drains, 3 closed after a fail-over), `next_at` when to look again, `last_pos` the last position taken.
-- The tasks come as columns, which cost a third less than rows, here and in the client; a column of one element stands
-- for as many of it, and one that is null for nulls.
create or replace function duetime.claim(
    p_now bigint, p_worker text, p_number bigint, p_lanes integer[], p_starts bigint[], p_floors bigint[],
    p_quotas integer[], p_total integer, p_watched integer[], p_watched_floors bigint[], p_gates_version bigint,
    p_lanes_version bigint, p_incarnation text, p_lead bigint
) returns table (
    how integer, now_at bigint, next_at bigint, last_pos bigint, seen_at bigint, oldest bigint, next bigint,
    firsts bigint[], ids text[], lanes integer[], payloads text[], attempts integer[], tries integer[],
    crashes integer[], dues bigint[], sinces bigint[], submitted bigint[], submitters text[], expiries bigint[],
    timeouts double precision[], retries text[], extras text[], keys text[], schedules text[], planned bigint[],
    epoch bigint
) language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
    set enable_hashjoin = off
set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
    v_now bigint := coalesce(p_now, duetime.clock());
    -- before this transaction gets its number (I7)
    v_horizon bigint := (select h.last_value from duetime.horizon as h);
    v_until bigint := v_now + p_lead;
    v_incarnation text := p_incarnation;
    v_control record;
    v_starts bigint[] := p_starts;
    v_count integer := 0;
    v_ids uuid[]; v_lanes integer[]; v_positions bigint[]; v_dues bigint[]; v_expiries bigint[];
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
    -- a statement of its own: not every role may call this, and the right is asked for whether it is called or
    -- not
    if v_incarnation is null then
        v_incarnation := substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8);
    end if;
    perform from duetime.worker as w where w.id = p_worker and not w.draining for key share;  -- I19
    if not found then
        how := 2;
        return next;
        return;
    end if;
    select * into v_control from duetime.control;
    if v_control.incarnation <> v_incarnation and v_incarnation <> 'unknown' then
        -- I18; and claims that are gone have put entries back below floors that were proved before (I8)
        perform nextval(s.tableoid) from duetime.set_backs as s where v_control.incarnation <> '';
        update duetime.control as c set incarnation = v_incarnation, open_at = case when c.incarnation = '' then 0
            else v_now + (select (max(w.lease) * 1200000)::bigint from duetime.worker as w) end,
            -- I20; as model.fences.next_epoch says
            epoch = case when c.incarnation = '' then c.epoch
                else greatest(c.epoch + 1, v_now / 1000000 - 1767225600) end
        where c.incarnation <> v_incarnation;
        select * into v_control from duetime.control;
    elsif v_now < v_control.open_at then
        -- further away than it was ever set: the clock was set back, and how much of the time has passed
        -- cannot be known
        update duetime.control as c set open_at = v_now + l.span
        from (select (max(w.lease) * 1200000)::bigint as span from duetime.worker as w) as l
            where c.open_at > v_now + l.span;
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
                where not duetime.is_road(l.lane)
                union all
                select x.ctid from unnest(p_lanes, v_starts, p_quotas) as l (lane, start, quota)
                cross join lateral (
                    select e.ctid from duetime.due as e
                    where e.lane < 0 and e.lane >> 15 = l.lane and e.pos >= l.start and e.pos <= v_until
                    order by e.pos limit l.quota for update skip locked
                ) as x
                where duetime.is_road(l.lane)
                limit p_total - v_count))
            returning d.*
        )
        select v_ids || array_agg(t.id), v_lanes || array_agg(t.lane), v_positions || array_agg(t.pos),
            v_dues || array_agg(t.due_at), v_expiries || array_agg(t.expires_at),
            v_attempts || array_agg(t.attempt + 1), v_tries || array_agg(t.tries), v_crashes || array_agg(t.crashes),
            payloads || array_agg(t.payload), submitted || array_agg(t.submitted_at),
            submitters || array_agg(t.submitted_by), v_count + count(*), v_late
            or coalesce(bool_or(t.expires_at <= v_now), false), v_whole and coalesce(bool_and(t.payload is not null),
            true), v_some_whole or coalesce(bool_or(t.payload is not null), false),
            v_bytes + coalesce(sum(coalesce(t.size, 1000000)), 0),
            v_doubtful || array_agg(t.id) filter (where t.doubtful)
        into v_ids, v_lanes, v_positions, v_dues, v_expiries, v_attempts, v_tries, v_crashes, payloads, submitted,
            submitters, v_count, v_late, v_whole, v_some_whole, v_bytes, v_doubtful
        from (select * from taken order by case when lane < 0 and lane >> 15 = any (p_lanes) then lane >> 15
            else lane end, pos, id) as t;
        exit when v_count = p_total or v_starts = p_floors;  -- I9
        v_starts := p_floors;
    end loop;
    if v_doubtful is not null then  -- I14
        v_gone := duetime.forget_repeats(v_doubtful);
    end if;
    if v_late then
        v_present := coalesce(p_now, duetime.present());
        perform duetime.end_tasks(v_present, 'expired', null, array_agg(e.id), array_agg(e.attempt - 1),
            array_agg(e.tries), array_agg(e.crashes))
        from unnest(v_ids, v_expiries, v_attempts, v_tries, v_crashes) as e (id, expires_at, attempt, tries, crashes)
            where e.expires_at <= v_now;
        v_gone := v_gone || array(select e.id from unnest(v_ids, v_expiries) as e (id, expires_at)
            where e.expires_at <= v_now);
    end if;
    if v_gone <> '{}' then
        select array_agg(e.id), array_agg(e.lane), array_agg(e.pos), array_agg(e.due_at), array_agg(e.expires_at),
            array_agg(e.attempt), array_agg(e.tries), array_agg(e.crashes), array_agg(e.payload),
            array_agg(e.submitted_at), array_agg(e.submitted_by)
        into v_ids, v_lanes, v_positions, v_dues, v_expiries, v_attempts, v_tries, v_crashes, payloads, submitted,
            submitters
        from unnest(v_ids, v_lanes, v_positions, v_dues, v_expiries, v_attempts, v_tries, v_crashes, payloads,
            submitted, submitters)
            as e (id, lane, pos, due_at, expires_at, attempt, tries, crashes, payload, submitted_at, submitted_by)
        where (e.id in (select unnest(v_gone))) is not true;
    end if;
    if v_ids is not null and v_bytes > 33554432 then
        -- what would make the reply too long goes back at once; a worker need not have so much in memory either
        select count(*) into v_fitting from (
            select sum(octet_length(coalesce(u.payload, t.payload))) over (order by u.index) as bytes, u.index
            from unnest(v_ids, payloads) with ordinality as u (id, payload, index)
            left join lateral (select x.payload from duetime.task as x where x.id = u.id offset 0) as t on true
        ) as s where s.bytes <= 33554432 or s.index = 1;
        if v_fitting < cardinality(v_ids) then
            v_present := coalesce(p_now, duetime.present());
            insert into duetime.due (lane, pos, id, due_at, expires_at, attempt, tries, crashes, size, payload,
                submitted_at, submitted_by)
            select b.lane, greatest(b.due_at, v_present), b.id, b.due_at, b.expires_at, b.attempt - 1, b.tries,
                b.crashes, octet_length(b.payload), b.payload, b.submitted_at, b.submitted_by
            from unnest(v_ids, v_lanes, v_dues, v_expiries, v_attempts, v_tries, v_crashes, payloads, submitted,
                submitters) with ordinality
                as b (id, lane, due_at, expires_at, attempt, tries, crashes, payload, submitted_at, submitted_by, index)
            where b.index > v_fitting;
            v_ids := v_ids[1 : v_fitting];
            v_lanes := v_lanes[1 : v_fitting];
            v_positions := v_positions[1 : v_fitting];
            v_dues := v_dues[1 : v_fitting];
            v_expiries := v_expiries[1 : v_fitting];
            v_attempts := v_attempts[1 : v_fitting];
            v_tries := v_tries[1 : v_fitting];
            v_crashes := v_crashes[1 : v_fitting];
            payloads := payloads[1 : v_fitting];
            submitted := submitted[1 : v_fitting];
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
        insert into duetime.claim (worker, number, claimed_at, open, done, cancel, first_id, last_id, tasks, lanes,
            dues, expiries, attempts, tries, crashes, payloads, submitted, submitters)
        values (p_worker, p_number, v_now, cardinality(v_ids), repeat('0', cardinality(v_ids))::varbit,
            repeat('0', cardinality(v_ids))::varbit, (select u.id from unnest(v_ids) as u (id) order by u.id limit 1),
            (select u.id from unnest(v_ids) as u (id) order by u.id desc limit 1), v_ids, lanes, v_dues,
            duetime.shared(v_expiries), attempts, tries, crashes, case when v_some_whole then payloads end,
            case when v_some_whole then submitted end, case when v_some_whole then submitters end);
        if v_whole then
            sinces := v_dues;
        else
            select array_agg(coalesce(u.payload, t.payload)), array_agg(coalesce(t.due_at, u.due_at)),
                array_agg(coalesce(t.submitted_at, u.submitted_at, submitted[1])),
                array_agg(coalesce(t.submitted_by, u.submitted_by, submitters[1])),
                bool_or(not (t.expires_at, t.timeout, t.retry, t.extras, t.key, t.schedule, t.planned_at) is null)
            into payloads, sinces, submitted, submitters, v_special
            from unnest(v_ids, v_dues, payloads, submitted, submitters) as u (id, due_at, payload, submitted_at,
                submitted_by)
            left join lateral (select x.* from duetime.task as x where x.id = u.id offset 0) as t on true;
            submitted := duetime.shared(submitted);
            submitters := duetime.shared(submitters);
            if v_special then
                select array_agg(t.expires_at), array_agg(t.timeout), array_agg(t.retry), array_agg(t.extras),
                    array_agg(t.key), array_agg(t.schedule), array_agg(t.planned_at)
                into expiries, timeouts, retries, extras, keys, schedules, planned
                from unnest(v_ids) as u (id) left join lateral (select x.* from duetime.task as x
                    where x.id = u.id offset 0) as t on true;
            end if;
        end if;
        ids := v_ids;
        epoch := v_control.epoch;
        dues := nullif(v_dues, sinces);
        -- what is added from now on may stand before those that are not due yet
        last_pos := least(v_positions[cardinality(v_positions)], v_now);
    end if;
    select least(next_at, min(case when duetime.is_road(l.lane) then (
            select d.pos from duetime.due as d
            where d.lane < 0 and d.lane >> 15 = l.lane and d.pos > v_until order by d.pos limit 1)
        else (select d.pos from duetime.due as d where d.lane = l.lane and d.pos > v_until order by d.pos limit 1)
        end) - p_lead) into next_at from unnest(p_watched) as l (lane);
    if p_watched_floors is not null then
        -- our own transaction counts as under way, and what it has taken as gone: it is, when this reply arrives
        select l.now_at, l.oldest, l.next, l.firsts into seen_at, oldest, next, firsts
            from duetime.look(p_now, v_horizon, p_watched, p_watched_floors) as l;
    end if;
    how := 0;
    return next;
end $$;
