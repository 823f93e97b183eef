-- Schedules: writing them, letting them go on, and finding those whose time has come.

-- Write schedules whose version is the expected one; one without an id is removed. Returns the names of those of which
-- that was so, and the time for tasks that are added in the same transaction: its number first, then the clock, see
-- `look`. Schedules are given in the order of their names and are locked in that order: two that write the same ones
-- wait for each other instead of locking up. Rows are found by the array of names and then hashed, whatever the
-- planner believes of the table; one update for each in a loop took 9 µs more for each.
create or replace function duetime.write_schedules(
    p_now bigint, p_names text[], p_expected bigint[], p_ids text[], p_handlers text[], p_collections text[],
        p_revisions bigint[], p_next bigint[],
    p_waits boolean[], p_paused boolean[], p_declared bigint[], p_created bigint[], p_changed bigint[],
        p_changed_by text[], p_specs text[], p_states text[],
    out p_written text[], out p_at bigint
) language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
    set enable_mergejoin = off set jit = off as $$
declare
    v_names text[];
begin
    p_at := duetime.begin_adding(p_now);
    with changed as (
        update duetime.schedule as s set version = w.expected + 1, id = w.id, handler = w.handler,
            collection = w.collection,
            revision = w.revision, next_at = w.next_at, waits = w.waits, paused = w.paused, declared = w.declared,
            created_at = w.created_at, changed_at = w.changed_at, changed_by = w.changed_by, spec = w.spec,
                state = w.state
        from unnest(p_names, p_expected, p_ids, p_handlers, p_collections, p_revisions, p_next, p_waits, p_paused,
            p_declared, p_created, p_changed,
            p_changed_by, p_specs, p_states) as w (name, expected, id, handler, collection, revision, next_at, waits,
                paused, declared, created_at,
            changed_at, changed_by, spec, state)
        where s.name = any (p_names) and w.name = s.name and w.expected = s.version and w.id is not null
        returning s.name
    )
    select coalesce(array_agg(c.name), '{}') into p_written from changed as c;
    if 0 = any (p_expected) then
        with made as (
            insert into duetime.schedule (name, version, id, handler, collection, revision, next_at, waits, paused,
                declared, created_at, changed_at,
                changed_by, spec, state)
            select w.name, 1, w.id, w.handler, w.collection, w.revision, w.next_at, w.waits, w.paused, w.declared,
                w.created_at, w.changed_at,
                w.changed_by, w.spec, w.state
            from unnest(p_names, p_expected, p_ids, p_handlers, p_collections, p_revisions, p_next, p_waits, p_paused,
                p_declared, p_created, p_changed,
                p_changed_by, p_specs, p_states) as w (name, expected, id, handler, collection, revision, next_at,
                    waits, paused, declared, created_at,
                changed_at, changed_by, spec, state)
            where w.expected = 0 and w.id is not null
            on conflict (name) do nothing
            returning name
        )
        select array_agg(m.name) into v_names from made as m;
        p_written := p_written || v_names;
    end if;
    if array_position(p_ids, null) is not null then
        with gone as (
            delete from duetime.schedule as s using unnest(p_names, p_expected, p_ids) as w (name, expected, id)
            where s.name = any (p_names) and w.name = s.name and w.expected = s.version and w.id is null
            returning s.name
        ), known as (
            select s.name from duetime.schedule as s where s.name = any (p_names)
        ), absent as (
            select w.name from unnest(p_names, p_expected, p_ids) as w (name, expected, id)
            where w.expected = 0 and w.id is null and w.name not in (select k.name from known as k)
        )
        select array_agg(x.name) into v_names from (select g.name from gone as g union all select a.name
            from absent as a) as x;
        p_written := p_written || v_names;
    end if;
end $$;

-- The same for schedules of which only the state and the next look change, which is what firing does: a third of the
-- columns.
create or replace function duetime.move_schedules(
    p_now bigint, p_names text[], p_expected bigint[], p_next bigint[], p_paused boolean[], p_states text[],
        out p_written text[], out p_at bigint
) language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
    set enable_mergejoin = off set jit = off as $$
begin
    p_at := duetime.begin_adding(p_now);
    with moved as (
        update duetime.schedule as s set version = w.expected + 1, next_at = w.next_at, paused = w.paused,
            state = w.state
        from unnest(p_names, p_expected, p_next, p_paused, p_states) as w (name, expected, next_at, paused, state)
        where s.name = any (p_names) and w.name = s.name and w.expected = s.version
        returning s.name
    )
    select coalesce(array_agg(m.name), '{}') into p_written from moved as m;
end $$;

-- Let schedules go on and add their tasks, all in one round trip; if one of the schedules has changed meanwhile,
-- everything is refused.
create or replace function duetime.fire_schedules(
    p_now bigint, p_names text[], p_expected bigint[], p_next bigint[], p_paused boolean[], p_states text[],
    p_tasks duetime.new_tasks, out p_at bigint, out p_added text[]
) language plpgsql as $$
declare
    v_moved record;
begin
    select m.p_written, m.p_at into v_moved
    from duetime.move_schedules(p_now, p_names, p_expected, p_next, p_paused, p_states) as m;
    if cardinality(v_moved.p_written) < cardinality(p_names) then
        raise exception 'some of these schedules have changed' using errcode = 'DT003';
    end if;
    p_at := v_moved.p_at;
    p_added := duetime.add(p_at, p_tasks);
end $$;

-- Schedules whose time has come, the longest waiting first, without those of closed handlers and pairs (handler, new
-- line, collection). The index alone says which; only those that are given are read.
create or replace function duetime.due_schedules(p_now bigint, p_limit integer, p_handlers text[], p_pairs text[],
    p_after_at bigint, p_after_name text)
returns setof duetime.schedule
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
    set enable_hashjoin = off
set enable_mergejoin = off set jit = off as $$
begin
    return query
    select r.* from (
        select s.name from duetime.schedule as s
        where s.next_at <= p_now and (s.next_at, s.name) > (p_after_at, p_after_name)
        and s.handler <> all (p_handlers) and s.handler || e'\n' || s.collection <> all (p_pairs)
        order by s.next_at, s.name limit p_limit
    ) as n cross join lateral (select x.* from duetime.schedule as x where x.name = n.name offset 0) as r;
end $$;

-- When the time of the next one comes.
create or replace function duetime.next_schedule(p_now bigint, p_handlers text[], p_pairs text[]) returns bigint
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off as $$
begin
    return (
        select s.next_at from duetime.schedule as s
        where s.next_at > p_now and s.handler <> all (p_handlers) and s.handler || e'\n'
            || s.collection <> all (p_pairs)
        order by s.next_at, s.name limit 1
    );
end $$;
