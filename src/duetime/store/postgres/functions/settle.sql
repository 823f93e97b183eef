-- Recording how attempts ended.

-- Those of the settlements that are the worker's to say (I11). The claims are locked by the caller (I10).
create or replace function duetime.match(
    p_now bigint, p_worker text, p_claims bigint[], p_ids uuid[], p_attempts integer[], p_started bigint[],
    p_finished bigint[], p_states text[], p_outcomes text[], p_tries integer[], p_crashes integer[], p_dues bigint[],
    p_results text[], p_errors text[], p_details text[]
) returns table (
    said integer, number bigint, open integer, index integer, id uuid, lane integer, expires_at bigint, attempt integer,
    tries integer, crashes integer, started_at bigint, finished_at bigint, due_at bigint, result text, error text,
    outcome text, state text, payload text, since_at bigint, submitted_at bigint, submitted_by text, detail text
) language plpgsql stable rows 500
set enable_hashjoin = on set enable_nestloop = off set enable_mergejoin = off set enable_seqscan = off
set jit = off as $$
#variable_conflict use_column
begin
    return query
    with running as materialized (
        select p.* from duetime.open_attempt as p where p.worker = p_worker
            and (p_claims is null or p.number = any (p_claims))
    )
    select s.index::integer, r.number, r.open, r.index, r.id, r.lane, r.expires_at, r.attempt,
        coalesce(s.tries, r.tries), coalesce(s.crashes, r.crashes), s.started_at, s.finished_at,
        -- one that was claimed before it was due, and still is not, keeps its due time
        greatest(coalesce(s.due_at, p_now), case when r.due_at > r.claimed_at and r.due_at > p_now then r.due_at end),
        s.result, s.error, coalesce(s.outcome, 'succeeded'),
        case when s.state = 'pending' and r.cancelling then 'cancelled' else coalesce(s.state, 'succeeded') end,
        r.payload, r.due_at, r.submitted_at, r.submitted_by, s.detail
    from unnest(p_ids, p_attempts, p_started, p_finished, p_states, p_outcomes, p_tries, p_crashes, p_dues, p_results,
        p_errors, p_details) with ordinality
        as s (id, attempt, started_at, finished_at, state, outcome, tries, crashes, due_at, result, error, detail,
            index)
    join running as r on r.id = s.id and r.attempt = s.attempt;
end $$;

-- Leave out attempts of tasks that have had many, and what they printed: all between the first hundred and the last
-- four hundred (FIRST_ATTEMPTS_KEPT, LAST_ATTEMPTS_KEPT). That is one of each task, unless output came late. A row of
-- `output` is the lock of its pieces, so it goes first; tasks are named in order, as those who write output lock them.
create or replace function duetime.leave_out(p_ids uuid[], p_attempts integer[]) returns void language plpgsql as $$
declare
    v_task record;
begin
    for v_task in select u.id, u.attempt - 400 as last from unnest(p_ids, p_attempts) as u (id, attempt) order by u.id
    loop
        delete from duetime.attempt as a where a.task = v_task.id and a.attempt > 100 and a.attempt <= v_task.last;
        delete from duetime.output as o where o.task = v_task.id and o.attempt > 100 and o.attempt <= v_task.last;
        delete from duetime.output_chunk as c where c.task = v_task.id and c.attempt > 100
            and c.attempt <= v_task.last;
    end loop;
end $$;

-- Record how attempts of a worker ended. Nulls stand for what the claim already says, and for success. p_claims
-- null: look into all claims; of what is no failure the last three are null. Returns the indexes (from 1) of what was
-- accepted, null if all were; the rest is not this worker's at this number.
create or replace function duetime.settle(
    p_now bigint, p_worker text, p_claims bigint[], p_ids uuid[], p_attempts integer[], p_started bigint[],
    p_finished bigint[], p_states text[], p_outcomes text[], p_tries integer[], p_crashes integer[], p_dues bigint[],
    p_results text[], p_errors text[], p_details text[], p_fingerprints text[], p_handlers text[], p_kinds text[]
) returns table (accepted integer[], finals integer, earliest bigint) language plpgsql
set enable_seqscan = off set enable_hashjoin = on set enable_nestloop = off set enable_mergejoin = off
set jit = off as $$
#variable_conflict use_column
declare
    v_now bigint;
    v_accepted integer[];
    v_finals uuid[];
    v_succeeded boolean[];
    v_earliest bigint;
    v_long uuid[];
    v_numbers integer[];
begin
    v_now := duetime.begin_adding(p_now);
    perform from duetime.claim as c where c.worker = p_worker and (p_claims is null or c.number = any (p_claims))
        order by c.number for update;  -- I10
    with ended as materialized (
        select * from duetime.match(v_now, p_worker, p_claims, p_ids, p_attempts, p_started, p_finished, p_states,
            p_outcomes, p_tries, p_crashes, p_dues, p_results, p_errors, p_details)
    ), batch as (
        select e.number, count(*) as n, count(*) = e.open as whole from ended as e group by e.number, e.open
    ), closed as (
        delete from duetime.claim as c using batch as b where c.worker = p_worker and c.number = b.number and b.whole
    ), marked as (
        update duetime.claim as c set open = c.open - b.n,
            done = (select bit_or(set_bit(c.done, e.index - 1, 1)) from ended as e where e.number = c.number)
        from batch as b where c.worker = p_worker and c.number = b.number and not b.whole
    ), moved as (
        delete from duetime.task as t where t.id = any (array(select e.id from ended as e where e.state <> 'pending'
            and e.payload is null)) returning t.*
    ), kept as (
        insert into duetime.history (id, lane, handler, key, payload, due_at, submitted_at, submitted_by, expires_at,
            timeout, retry, extras, schedule, planned_at, state, outcome, attempt, tries, crashes, worker, started_at,
            finished_at, result, error, detail, fingerprint)
        select m.id, m.lane, m.handler, m.key, m.payload, m.due_at, m.submitted_at, m.submitted_by, m.expires_at,
            m.timeout, m.retry, m.extras, m.schedule, m.planned_at, e.state, e.outcome, e.attempt, e.tries, e.crashes,
            p_worker, e.started_at, e.finished_at, e.result, e.error, e.detail, p_fingerprints[e.said]
        from moved as m join ended as e on e.id = m.id
        union all
        select e.id, e.lane, l.handler, null, e.payload, e.since_at, e.submitted_at, e.submitted_by, null, null, null,
            null, null, null, e.state, e.outcome, e.attempt, e.tries, e.crashes, p_worker, e.started_at, e.finished_at,
            e.result, e.error, e.detail, p_fingerprints[e.said]
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
        on conflict (id) do update set pos = excluded.pos, due_at = excluded.due_at, expires_at = excluded.expires_at,
            attempt = excluded.attempt, tries = excluded.tries, crashes = excluded.crashes, doubtful = false
        returning d.id, d.doubtful is null as alone
    ), told as (
        insert into duetime.attempt (task, attempt, outcome, worker, started_at, finished_at, error, detail)
        select e.id, e.attempt, e.outcome, p_worker, e.started_at, e.finished_at, e.error, e.detail from ended as e
            where e.state = 'pending'
    ), counted as (
        insert into duetime.tally (lane, state, n)
        select e.lane, 'live', -count(*) from ended as e where e.state <> 'pending'
            or e.id in (select a.id from again as a where not a.alone) group by e.lane
        union all
        select e.lane, e.state, count(*) from ended as e where e.state <> 'pending' group by e.lane, e.state
    )
    select array_agg(e.said), array_agg(e.id) filter (where e.state <> 'pending'),
        array_agg(e.state = 'succeeded') filter (where e.state <> 'pending'),
            min(greatest(e.due_at, v_now)) filter (where e.state = 'pending'),
        array_agg(e.id) filter (where e.attempt > 500 and e.state = 'pending'),
            array_agg(e.attempt) filter (where e.attempt > 500 and e.state = 'pending')
    into v_accepted, v_finals, v_succeeded, v_earliest, v_long, v_numbers from ended as e;
    if p_fingerprints is not null then
        insert into duetime.failure_tally (fingerprint, handler, at, attempts, tasks, sample, kind)
        select s.fingerprint, min(s.handler), v_now, count(*), count(*) filter (where s.state = 'failed'),
            (array_agg(s.id order by s.index desc))[1], (array_agg(s.kind order by s.index desc))[1]
        from unnest(p_ids, p_states, p_fingerprints, p_handlers, p_kinds) with ordinality
            as s (id, state, fingerprint, handler, kind, index)
        where s.fingerprint is not null and s.index = any (v_accepted) group by s.fingerprint;
    end if;
    if v_long is not null then
        perform duetime.leave_out(v_long, v_numbers);
    end if;
    if exists (select from duetime.progress) then
        delete from duetime.progress as p where p.id = any (p_ids);
    end if;
    if v_finals is not null and duetime.may_be_members(v_finals) then
        perform duetime.arrive(v_finals, v_succeeded);
    end if;
    if v_finals is not null and duetime.may_be_needed(v_finals) then
        v_earliest := least(v_earliest, duetime.follow(v_now, v_finals, v_succeeded));
    end if;
    return query select case when cardinality(v_accepted) = cardinality(p_ids) then null
        else coalesce(v_accepted, '{}') end, coalesce(cardinality(v_finals), 0), v_earliest;
end $$;

-- Record that attempts succeeded which are neighbours in their claims and have no result: what most settles are.
-- Nothing has to be matched (I12): two thirds of the cost of `settle`. Each claim is named once, in rising order, as
-- everybody locks them; p_started and p_finished are in the order of the attempts. An attempt that is not open
-- refuses all, and the caller takes `settle` instead.
create or replace function duetime.settle_slices(
    p_now bigint, p_worker text, p_claims bigint[], p_firsts integer[], p_sizes integer[], p_started bigint[],
        p_finished bigint[]
) returns bigint language plpgsql
set enable_seqscan = off set enable_hashjoin = on set enable_nestloop = off set enable_mergejoin = off
set jit = off as $$
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
            duetime.part(c.attempts, v_slice.first, v_last) as attempts, duetime.part(c.tries, v_slice.first,
            v_last) as tries, duetime.part(c.crashes, v_slice.first, v_last) as crashes,
            c.dues[v_slice.first : v_last] as dues, c.payloads[v_slice.first : v_last] as payloads,
            duetime.part(c.submitted, v_slice.first, v_last) as submitted, duetime.part(c.submitters, v_slice.first,
            v_last) as submitters into v_claim;
        if not found then
            update duetime.claim as c set open = c.open - v_slice.size,
                done = overlay(c.done placing repeat('1', v_slice.size)::varbit from v_slice.first)
            where c.worker = p_worker and c.number = v_slice.number
                and substring(c.done from v_slice.first for v_slice.size) = repeat('0', v_slice.size)::varbit
            returning c.tasks[v_slice.first : v_last] as tasks, duetime.part(c.lanes, v_slice.first, v_last) as lanes,
            duetime.part(c.attempts, v_slice.first, v_last) as attempts, duetime.part(c.tries, v_slice.first,
            v_last) as tries, duetime.part(c.crashes, v_slice.first, v_last) as crashes,
            c.dues[v_slice.first : v_last] as dues, c.payloads[v_slice.first : v_last] as payloads,
            duetime.part(c.submitted, v_slice.first, v_last) as submitted, duetime.part(c.submitters, v_slice.first,
            v_last) as submitters, c.open into v_claim;
            if not found then
                raise exception 'attempts % to % of claim % of worker % are not all open', v_slice.first, v_last,
                    v_slice.number, p_worker
                    using errcode = 'DT002';
            end if;
            if v_claim.open = 0 then  -- another one ended the others while this one waited for it
                delete from duetime.claim as c where c.worker = p_worker and c.number = v_slice.number;
            end if;
        end if;
        if v_claim.payloads is not null then
            v_handler := case when cardinality(v_claim.lanes) = 1 then (select l.handler from duetime.lane as l
                where l.id = v_claim.lanes[1]) end;
            insert into duetime.history (id, lane, handler, payload, due_at, submitted_at, submitted_by, state, outcome,
                attempt, tries, crashes, worker, started_at, finished_at)
            select e.id, coalesce(e.lane, v_claim.lanes[1]),
                coalesce(v_handler, (select l.handler from duetime.lane as l where l.id = e.lane)), e.payload, e.due_at,
                coalesce(e.submitted_at, v_claim.submitted[1]), coalesce(e.submitted_by, v_claim.submitters[1]),
                'succeeded', 'succeeded', coalesce(e.attempt, v_claim.attempts[1]), coalesce(e.tries, v_claim.tries[1]),
                coalesce(e.crashes, v_claim.crashes[1]), p_worker, e.started_at, e.finished_at
            from unnest(v_claim.tasks, v_claim.lanes, v_claim.dues, v_claim.attempts, v_claim.tries, v_claim.crashes,
                v_claim.payloads, v_claim.submitted, v_claim.submitters,
                p_started[v_before + 1 : v_before + v_slice.size], p_finished[v_before + 1 : v_before + v_slice.size])
                as e (id, lane, due_at, attempt, tries, crashes, payload, submitted_at, submitted_by, started_at,
                    finished_at)
            where e.payload is not null;
        end if;
        if v_claim.payloads is null or array_position(v_claim.payloads, null) is not null then
            v_rows := case when v_claim.payloads is null then v_claim.tasks
                else array(select e.id from unnest(v_claim.tasks, v_claim.payloads) as e (id, payload)
                    where e.payload is null) end;
            with moved as (
                delete from duetime.task as t where t.id = any (v_rows) returning t.*
            )
            insert into duetime.history (id, lane, handler, key, payload, due_at, submitted_at, submitted_by,
                expires_at, timeout, retry, extras, schedule, planned_at, state, outcome, attempt, tries, crashes,
                worker, started_at, finished_at)
            select m.id, m.lane, m.handler, m.key, m.payload, m.due_at, m.submitted_at, m.submitted_by, m.expires_at,
                m.timeout, m.retry, m.extras, m.schedule, m.planned_at, 'succeeded', 'succeeded',
                coalesce(e.attempt, v_claim.attempts[1]), coalesce(e.tries, v_claim.tries[1]),
                coalesce(e.crashes, v_claim.crashes[1]), p_worker, e.started_at, e.finished_at
            from moved as m join unnest(v_claim.tasks, v_claim.attempts, v_claim.tries, v_claim.crashes,
                p_started[v_before + 1 : v_before + v_slice.size], p_finished[v_before + 1 : v_before + v_slice.size])
                as e (id, attempt, tries, crashes, started_at, finished_at) on e.id = m.id;
        end if;
        insert into duetime.tally (lane, state, n)
        select l.lane, s.state, s.sign * l.n from (
            select v_claim.lanes[1] as lane, v_slice.size as n where cardinality(v_claim.lanes) = 1
            union all
            select u.lane, count(*) from unnest(v_claim.lanes) as u (lane) where cardinality(v_claim.lanes) > 1
                group by u.lane
        ) as l cross join (values ('live', -1), ('succeeded', 1)) as s (state, sign);
        if exists (select from duetime.progress) then
            delete from duetime.progress as p where p.id = any (v_claim.tasks);
        end if;
        if duetime.may_be_members(v_claim.tasks) then
            perform duetime.arrive(v_claim.tasks, array_fill(true, array[v_slice.size]));
        end if;
        if duetime.may_be_needed(v_claim.tasks) then
            v_earliest := least(v_earliest, duetime.follow(v_now, v_claim.tasks,
                array_fill(true, array[v_slice.size])));
        end if;
        v_before := v_before + v_slice.size;
    end loop;
    if v_before <> cardinality(p_started) then
        raise exception '% attempts of worker % have % ends', v_before, p_worker, cardinality(p_started)
            using errcode = 'DT002';
    end if;
    return v_earliest;
end $$;
