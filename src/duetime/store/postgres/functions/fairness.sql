-- Looking into the collections of fair handlers; `model/fairness.py` has the rules.

-- The first positions that are due or will be soon: of each of p_lanes so many, and of lanes of p_roads in which
-- something has become due after p_since, which may be others; but of the newest of it only, if that is much.
create or replace function duetime.peek_each(p_now bigint, p_lanes integer[], p_floors bigint[], p_limits integer[],
    p_roads integer[], p_since bigint, p_lead bigint)
returns table (lane integer, positions bigint[]) language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
#variable_conflict use_column
declare
    v_until bigint := coalesce(p_now, duetime.clock()) + p_lead;
begin
    return query
    select l.lane, p.positions from unnest(p_lanes, p_floors, p_limits) as l (lane, floor, most)
    cross join lateral (
        select array(select d.pos from duetime.due as d
            where d.lane = l.lane and d.pos >= l.floor and d.pos <= v_until order by d.pos limit l.most) as positions
    ) as p
    union all
    select n.lane, array_agg(n.pos order by n.pos) from unnest(p_roads) as r (road)
    cross join lateral (
        select d.lane, d.pos from duetime.due as d
        where d.lane < 0 and d.lane >> 15 = r.road and d.pos > p_since and d.pos <= v_until
            order by d.pos desc limit 1000
    ) as n
    where n.lane <> all (p_lanes) group by n.lane;
end $$;

-- Those of these lanes in which something is due or will be soon.
create or replace function duetime.due_lanes(p_now bigint, p_lanes integer[], p_floors bigint[], p_lead bigint)
returns table (lane integer) language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
#variable_conflict use_column
declare
    v_until bigint := coalesce(p_now, duetime.clock()) + p_lead;
begin
    return query
    select l.lane from unnest(p_lanes, p_floors) as l (lane, floor) where exists (
        select from duetime.due as d where d.lane = l.lane and d.pos >= l.floor and d.pos <= v_until);
end $$;
