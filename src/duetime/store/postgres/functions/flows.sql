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
    insert into duetime.value (flow, node, round, position, data)
    select m.flow, m.node, m.round, m.position, coalesce(h.result, 'null')
    from unnest(p_ids, p_succeeded) as e (id, succeeded) join duetime.member as m on m.task = e.id and m.keeps
    join duetime.history as h on h.id = m.task where e.succeeded
    on conflict (flow, node, round, position) do update set data = excluded.data;
end $$;
