-- Members of flows that end.

-- Say whether one of these tasks may belong to a flow; by their range, as `may_be_needed` does.
create or replace function duetime.may_be_members(p_ids uuid[]) returns boolean language plpgsql stable
set enable_seqscan = off as $$
begin
    if not exists (select from duetime.member) then
        return false;
    end if;
    return exists (select from duetime.member as m where m.task >= (select i.id from unnest(p_ids) as i (id)
        order by i.id limit 1) and m.task <= (select i.id from unnest(p_ids) as i (id) order by i.id desc limit 1));
end $$;

-- Tell the flows of ended tasks that these have arrived, and keep what they returned if somebody reads it. The ends
-- stand in history already. No row of a flow is locked: whoever ends members looks after the commit.
create or replace function duetime.arrive(p_ids uuid[], p_succeeded boolean[]) returns void language plpgsql
set enable_seqscan = off set enable_nestloop = on set enable_hashjoin = off set enable_mergejoin = off as $$
begin
    insert into duetime.arrival (flow, node, round, ended, failed)
    select m.flow, m.node, m.round, count(*), count(*) filter (where not e.succeeded)
    from unnest(p_ids, p_succeeded) as e (id, succeeded) join duetime.member as m on m.task = e.id
    group by m.flow, m.node, m.round;
    insert into duetime.value (flow, node, round, position, data, items)
    select m.flow, m.node, m.round, m.position, coalesce(h.result, 'null'), (
        select sum(p.items)::integer from duetime.piece as p where p.flow = m.flow and p.node = m.node
            and p.round = m.round and p.position = m.position and p.attempt = h.attempt)
    from unnest(p_ids, p_succeeded) as e (id, succeeded) join duetime.member as m on m.task = e.id and m.keeps
    join duetime.history as h on h.id = m.task where e.succeeded
    on conflict (flow, node, round, position) do update set data = excluded.data, items = excluded.items;
    if exists (select from duetime.piece) then
        delete from duetime.piece as p using unnest(p_ids, p_succeeded) as e (id, succeeded), duetime.member as m,
            duetime.history as h
        where m.task = e.id and h.id = m.task and p.flow = m.flow and p.node = m.node and p.round = m.round
            and p.position = m.position and (not e.succeeded or p.attempt <> h.attempt);
    end if;
end $$;

-- Keep what attempts of the worker have yielded, for those who read it: a verdict for each. The claims are locked, so
-- that nobody takes these attempts away meanwhile.
create or replace function duetime.save_pieces(
    p_worker text, p_tasks uuid[], p_attempts integer[], p_firsts integer[], p_items integer[], p_data text[]
) returns integer[] language plpgsql set enable_seqscan = off set jit = off as $$
declare
    v_own integer[] := duetime.own_attempts(p_worker, p_tasks, p_attempts);
begin
    insert into duetime.piece as p (flow, node, round, position, first, items, attempt, data)
    select m.flow, m.node, m.round, m.position, p_firsts[o.i], p_items[o.i], p_attempts[o.i], p_data[o.i]
    from unnest(v_own) as o (i) join duetime.member as m on m.task = p_tasks[o.i] and m.keeps
    on conflict (flow, node, round, position, first) do update set items = excluded.items, attempt = excluded.attempt,
        data = excluded.data;
    return array(
        select case when m.keeps is not true then 2 when t.i = any (v_own) then 1 else 0 end
        from unnest(p_tasks) with ordinality as t (task, i) left join duetime.member as m on m.task = t.task
        order by t.i);
end $$;
