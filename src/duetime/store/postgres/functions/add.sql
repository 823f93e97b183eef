-- Adding tasks that wait for time alone.

-- Add tasks that wait for time alone and are most probably new; if one is not, all are refused. p_newest is the time in the greatest id.
-- An array that is null stands for nulls; lanes, handlers and submitters of one element stand for all.
create or replace function duetime.add_new(
    p_now bigint, p_least uuid, p_since bigint, p_newest bigint, p_ids uuid[], p_lanes integer[], p_handlers text[], p_payloads text[], p_dues bigint[],
    p_delays bigint[], p_submitters text[], p_keys text[], p_expiries bigint[], p_expiries_in bigint[], p_timeouts double precision[], p_retries text[], p_extras text[],
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
    from unnest(p_ids, p_lanes, p_payloads, p_dues, p_delays, p_submitters, p_keys, p_expiries, p_expiries_in, p_timeouts, p_retries, p_extras, p_schedules, p_planned)
        as w (id, lane, payload, due, delay, submitted_by, key, expires_at, expires_in, timeout, retry, extras, schedule, planned_at)
    cross join lateral (select octet_length(w.payload) as size, octet_length(w.payload) <= 1000
        and (w.key, w.expires_at, w.expires_in, w.timeout, w.retry, w.extras, w.schedule, w.planned_at) is null as plain) as c
    cross join lateral (select coalesce(w.due, least(v_now + coalesce(w.delay, 0), 253402300799000000)) as due_at) as d;
    if not (p_keys is null and p_expiries is null and p_expiries_in is null and p_timeouts is null and p_retries is null and p_extras is null
        and p_schedules is null and p_planned is null) or exists (select from unnest(p_payloads) as w (payload) where octet_length(w.payload) > 1000) then
        insert into duetime.task (id, lane, handler, key, payload, due_at, submitted_at, submitted_by, expires_at, timeout, retry, extras, schedule, planned_at)
        select w.id, coalesce(w.lane, p_lanes[1]), coalesce(w.handler, p_handlers[1]), w.key, w.payload, d.due_at, v_now,
            coalesce(w.submitted_by, p_submitters[1]),
            coalesce(w.expires_at, case when w.expires_in is not null then least(d.due_at + w.expires_in, 253402300799000000) end),
            w.timeout, w.retry, w.extras, w.schedule, w.planned_at
        from unnest(p_ids, p_lanes, p_handlers, p_payloads, p_dues, p_delays, p_submitters, p_keys, p_expiries, p_expiries_in, p_timeouts, p_retries,
            p_extras, p_schedules, p_planned)
            as w (id, lane, handler, payload, due, delay, submitted_by, key, expires_at, expires_in, timeout, retry, extras, schedule, planned_at)
        cross join lateral (select coalesce(w.due, least(v_now + coalesce(w.delay, 0), 253402300799000000)) as due_at) as d
        where not (octet_length(w.payload) <= 1000
            and (w.key, w.expires_at, w.expires_in, w.timeout, w.retry, w.extras, w.schedule, w.planned_at) is null);
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
create or replace procedure duetime.add_new_and_tell(
    p_now bigint, p_least uuid, p_since bigint, p_newest bigint, p_ids uuid[], p_lanes integer[], p_handlers text[], p_payloads text[], p_dues bigint[],
    p_delays bigint[], p_submitters text[], p_keys text[], p_expiries bigint[], p_expiries_in bigint[], p_timeouts double precision[], p_retries text[], p_extras text[],
    p_schedules text[], p_planned bigint[], p_channel text, p_message text, inout p_at bigint
) language plpgsql as $$
begin
    p_at := duetime.add_new(p_now, p_least, p_since, p_newest, p_ids, p_lanes, p_handlers, p_payloads, p_dues, p_delays, p_submitters, p_keys, p_expiries,
        p_expiries_in, p_timeouts, p_retries, p_extras, p_schedules, p_planned);
    commit;
    perform set_config('synchronous_commit', 'off', true), pg_notify(p_channel, p_message);
end $$;

-- Add what can be added of these tasks, which wait for time alone, and give their ids: those whose id is stored already or whose key is held
-- are left out. Otherwise as `add_new`.
create or replace function duetime.add(
    p_now bigint, p_least uuid, p_since bigint, p_newest bigint, p_ids uuid[], p_lanes integer[], p_handlers text[], p_payloads text[], p_dues bigint[],
    p_delays bigint[], p_submitters text[], p_keys text[], p_expiries bigint[], p_expiries_in bigint[], p_timeouts double precision[], p_retries text[], p_extras text[],
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
            p_retries, p_extras, p_schedules, p_planned)
            as w (id, lane, handler, payload, due, delay, submitted_by, key, expires_at, expires_in, timeout, retry, extras, schedule, planned_at)
        where v_known = '{}' or (w.id in (select unnest(v_known))) is not true
    ), stored as (
        insert into duetime.task (id, lane, handler, key, payload, due_at, submitted_at, submitted_by, expires_at, timeout, retry, extras,
            schedule, planned_at)
        select w.id, coalesce(w.lane, p_lanes[1]), coalesce(w.handler, p_handlers[1]), w.key, w.payload, w.due_at, v_now,
            coalesce(w.submitted_by, p_submitters[1]),
            coalesce(w.expires_at, case when w.expires_in is not null then least(w.due_at + w.expires_in, 253402300799000000) end),
            w.timeout, w.retry, w.extras, w.schedule, w.planned_at
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
