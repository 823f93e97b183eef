-- Steps, waits and the signals that end them.

-- Whoever ends a wait locks its step, then the task's held entry; whoever suspends a task looks after the commit, under
-- the lock of the step, and so sees what ended it.

-- Return which of these attempts (from 1) the worker runs. Their claims are locked, so that nobody takes them away
-- until this transaction has ended.
create or replace function duetime.own_attempts(p_worker text, p_tasks uuid[], p_attempts integer[]) returns integer[]
language plpgsql set enable_seqscan = off set jit = off as $$
declare
    v_numbers bigint[] := array(select h.number from duetime.holders(p_tasks) as h where h.worker = p_worker);
begin
    perform from duetime.claim as c where c.worker = p_worker and c.number = any (v_numbers) order by c.number
        for share;
    return array(
        select n.index::integer from unnest(p_tasks, p_attempts) with ordinality as n (task, attempt, index)
        join duetime.open_attempt as a on a.worker = p_worker and a.number = any (v_numbers) and a.id = n.task
            and a.attempt = n.attempt
        order by n.index);
end $$;

-- Save steps of attempts that the worker runs, and return which of them (from 1) those are. Nobody takes these attempts
-- away meanwhile; a wait that is stored already stays as it is until it is done. One for a signal lasts a tenth of a
-- second from now at least, so that it takes what is kept, however late it is stored.
create or replace function duetime.save_steps(
    p_now bigint, p_worker text, p_tasks uuid[], p_attempts integer[], p_names text[], p_kinds text[], p_done boolean[],
    p_data text[], p_signals text[], p_wakes bigint[], p_children text[]
) returns integer[] language plpgsql set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_now bigint := coalesce(p_now, duetime.clock());
    v_said integer[] := duetime.own_attempts(p_worker, p_tasks, p_attempts);
begin
    insert into duetime.step as s (task, name, kind, attempt, at, done, data, signal, wake_at, children)
    select p_tasks[i], p_names[i], p_kinds[i], p_attempts[i], v_now, p_done[i], p_data[i], p_signals[i],
        case when p_signals[i] is null or p_wakes[i] is null then p_wakes[i]
            else greatest(p_wakes[i], v_now + 100000) end,
        p_children[i]
    from unnest(v_said) as i order by p_tasks[i], i
    on conflict (task, name) do update set kind = excluded.kind, attempt = excluded.attempt, at = excluded.at,
        done = excluded.done, late = false, data = excluded.data, signal = excluded.signal, wake_at = excluded.wake_at,
        children = excluded.children
    where s.kind <> excluded.kind or excluded.kind = 'value' or (excluded.done and not s.done)
        or (s.kind = 'call' and not s.done and s.data is null);
    return v_said;
end $$;

-- Let those of these tasks go on that are suspended and have nothing to wait for. Returns how many, and the earliest
-- position.
create or replace function duetime.wake(p_now bigint, p_ids uuid[], out p_woken integer, out p_earliest bigint)
language plpgsql set enable_seqscan = off set jit = off as $$
declare
    v_now bigint := duetime.begin_adding(p_now);
begin
    perform from duetime.step as s where s.task = any (p_ids) and s.kind <> 'value' order by s.task, s.name for update;
    perform from duetime.held as h where h.id = any (p_ids) order by h.id for update;
    update duetime.held as h set waiting = e.n from unnest(p_ids) as i (id)
        cross join lateral (select count(*) as n from duetime.edge as x where x.child = i.id) as e
        where h.id = i.id and h.reason = 'suspended' and e.n > 0 and h.waiting <> e.n;
    with freed as (
        delete from duetime.held as h where h.id = any (p_ids) and h.reason = 'suspended'
            and not exists (select from duetime.edge as e where e.child = h.id)
            and not exists (select from duetime.step as s where s.task = h.id and s.name = h.step and not s.done
                and s.signal is not null)
        returning h.*
    ), placed as (
        insert into duetime.due (lane, pos, id, due_at, expires_at, attempt, tries, crashes)
        select f.lane, greatest(f.due_at, v_now), f.id, f.due_at, f.expires_at, f.attempt, f.tries, f.crashes
        from freed as f returning pos
    )
    select count(*), min(p.pos) into p_woken, p_earliest from placed as p;
    update duetime.step as s set woken = true where s.task = any (p_ids) and not s.woken;
end $$;

-- Give kept signals of these names to who has waited longest. Returns the tasks whose waits have ended; `wake` lets
-- them go on.
create or replace function duetime.match_signals(p_now bigint, p_names text[]) returns uuid[] language plpgsql
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_now bigint := coalesce(p_now, duetime.clock());
    v_name text;
    v_tasks uuid[];
    v_steps bigint[];
    v_signals bigint[];
    v_data text[];
    v_woken uuid[] := '{}';
begin
    for v_name in select distinct u.name from unnest(p_names) as u (name) order by u.name loop
        select array_agg(w.task order by w.number), array_agg(w.number order by w.number) into v_tasks, v_steps
        from (select s.task, s.number from duetime.step as s where not s.done and s.signal = v_name
                and (s.wake_at is null or s.wake_at > v_now)
                and exists (select from duetime.task as t where t.id = s.task union all
                    select from duetime.running(array[s.task]))
            order by s.number limit 1000 for update of s) as w;
        continue when v_tasks is null;
        select array_agg(f.number order by f.number), array_agg(f.data order by f.number) into v_signals, v_data
        from (select g.number, g.data from duetime.signal as g where g.task is null and g.name = v_name
                and g.keep_until > v_now order by g.number limit cardinality(v_tasks) for update) as f;
        continue when v_signals is null;
        update duetime.signal as g set task = m.task, looked = true
            from unnest(v_signals, v_tasks) as m (number, task) where g.name = v_name and g.number = m.number
            and m.number is not null;
        update duetime.step as s set done = true, late = false, data = m.data, at = v_now, woken = false
            from unnest(v_tasks, v_steps, v_signals, v_data) as m (task, step, signal, data)
            where s.task = m.task and s.number = m.step and m.signal is not null;
        v_woken := v_woken || v_tasks[1 : cardinality(v_signals)];
    end loop;
    return v_woken;
end $$;

-- End waits whose time is over, as `late`. Returns their tasks.
create or replace function duetime.end_late_waits(p_now bigint, p_limit integer) returns uuid[] language plpgsql
set enable_seqscan = off set jit = off as $$
declare
    v_now bigint := coalesce(p_now, duetime.clock());
    v_tasks uuid[];
begin
    with over as materialized (
        select s.task, s.name from duetime.step as s where not s.done and s.signal is not null and s.wake_at <= v_now
        order by s.wake_at limit p_limit for update skip locked
    ), ended as (
        update duetime.step as s set done = true, late = true, at = v_now, woken = false from over as o
        where s.task = o.task and s.name = o.name returning s.task
    )
    select array_agg(e.task) into v_tasks from ended as e;
    return coalesce(v_tasks, '{}');
end $$;

-- Let tasks wait for the end of a step that this transaction has settled and put into `due` (I1: nobody else has seen
-- them there). `wake` is called for them after the commit: it alone sees what has ended meanwhile.
create or replace function duetime.suspend(p_ids uuid[], p_steps text[], p_waiting integer[]) returns void
language plpgsql set enable_seqscan = off set jit = off as $$
begin
    with moved as (
        delete from duetime.due as d where d.id = any (p_ids) returning d.*
    )
    insert into duetime.held (id, lane, reason, waiting, due_at, expires_at, attempt, tries, crashes, step)
    select m.id, m.lane, 'suspended', greatest(1, s.waiting), m.due_at, m.expires_at, m.attempt, m.tries, m.crashes,
        s.step
    from moved as m join unnest(p_ids, p_steps, p_waiting) as s (id, step, waiting) on s.id = m.id;
end $$;
