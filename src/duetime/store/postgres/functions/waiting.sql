-- Tasks that wait: locking them, and ending them before they ever run again.

-- Of doubtful tasks whose entries this transaction has taken or locked: forget those that run already or have ended,
-- and name them (I14).
create or replace function duetime.forget_repeats(p_ids uuid[]) returns uuid[] language plpgsql
set enable_seqscan = off as $$
declare
    v_least uuid := (select u.id from unnest(p_ids) as u (id) order by u.id limit 1);
    -- ids begin with milliseconds, and nothing finishes a day before its id was made
    v_since bigint := ('x0000' || replace(left(v_least::text, 13), '-', ''))::bit(64)::bigint * 1000 - 86400000000;
    v_known uuid[] := duetime.underway(v_least, p_ids);
begin
    if duetime.may_be_known(v_least, v_since) then
        v_known := v_known || array(select h.id from duetime.history as h where h.id = any (p_ids)
            and h.finished_at >= v_since);
    end if;
    with gone as (
        delete from duetime.task as t where t.id = any (v_known) returning t.lane
    )
    insert into duetime.tally (lane, state, n) select g.lane, 'live', -count(*) from gone as g group by g.lane;
    return v_known;
end $$;

-- Lock those of these tasks that wait, in the order in which everybody locks them, and name them; a new location where
-- tasks wait is locked here, too. Doubtful ones among them are forgotten, or found to be the only ones (I14); then they
-- stay that, because nobody can add them again while they stand there.
create or replace function duetime.lock_waiting(p_ids uuid[]) returns uuid[] language plpgsql
set enable_seqscan = off as $$
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

-- Move tasks into history whose entries have been taken away already. p_errors null: none has an error.
create or replace function duetime.record_ends(
    p_now bigint, p_state text, p_errors text[], p_ids uuid[], p_attempts integer[], p_tries integer[],
        p_crashes integer[]
) returns void language plpgsql
set enable_seqscan = off set enable_hashjoin = on set enable_nestloop = off set enable_mergejoin = off
set jit = off as $$
begin
    with gone as (
        delete from duetime.task as t where t.id = any (p_ids) returning t.*
    ), ended as (
        select g.*, e.attempt, e.tries, e.crashes, e.error from gone as g
        join unnest(p_ids, p_attempts, p_tries, p_crashes, p_errors) as e (id, attempt, tries, crashes,
            error) on e.id = g.id
    ), counted as (
        insert into duetime.tally (lane, state, n)
        select e.lane, s.state, s.sign * count(*) from ended as e cross join (values ('live', -1),
            (p_state, 1)) as s (state, sign)
        group by e.lane, s.state, s.sign
    )
    insert into duetime.history (id, lane, handler, key, payload, due_at, submitted_at, submitted_by, expires_at,
        timeout, retry, extras, schedule, planned_at, state, attempt, tries, crashes, finished_at, error)
    select e.id, e.lane, e.handler, e.key, e.payload, e.due_at, e.submitted_at, e.submitted_by, e.expires_at, e.timeout,
        e.retry, e.extras, e.schedule, e.planned_at, p_state, e.attempt, e.tries, e.crashes, p_now, e.error
    from ended as e;
    if duetime.may_be_members(p_ids) then
        perform duetime.arrive(p_ids, array_fill(p_state = 'succeeded', array[cardinality(p_ids)]));
    end if;
end $$;

-- End tasks that wait, whose entries have been taken away already. Returns the earliest position that a freed child
-- took.
create or replace function duetime.end_tasks(
    p_now bigint, p_state text, p_error text, p_ids uuid[], p_attempts integer[], p_tries integer[], p_crashes integer[]
) returns bigint language plpgsql set enable_seqscan = off as $$
begin
    perform duetime.record_ends(p_now, p_state, array_fill(p_error, array[cardinality(p_ids)]), p_ids, p_attempts,
        p_tries, p_crashes);
    if not exists (select from duetime.edge) then
        return null;
    end if;
    delete from duetime.edge as e where e.child = any (p_ids);
    return duetime.follow(p_now, p_ids, array_fill(p_state = 'succeeded', array[cardinality(p_ids)]));
end $$;

-- End those of these tasks that wait. Returns their ids.
create or replace function duetime.end_waiting(p_now bigint, p_state text, p_ids uuid[]) returns uuid[] language plpgsql
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
    select array_agg(x.id), array_agg(x.attempt), array_agg(x.tries), array_agg(x.crashes) into v_ids, v_attempts,
        v_tries, v_crashes
    from (select * from taken union all select p.id, p.attempt, p.tries, p.crashes from placed as p) as x;
    if v_ids is not null then
        perform duetime.end_tasks(v_now, p_state, null, v_ids, v_attempts, v_tries, v_crashes);
    end if;
    return coalesce(v_ids, '{}');
end $$;
