-- How far lanes are empty: what a look notes, and where claims begin.

-- Where claims of a lane begin; a floor of an earlier count of set-backs proves nothing (I8).
-- The floor of a road is one of each of its lanes.
create or replace view duetime.lane_floor as
select l.id, greatest(case when l.set_backs = s.last_value then l.floor else 0 end,
    case when r.set_backs = s.last_value then r.floor else 0 end) as floor
from duetime.lane as l cross join duetime.set_backs as s
left join duetime.road as r on r.id = l.id >> 15 and l.id < 0;

-- A look: a time, the oldest transaction that may still add entries, the number after our own, and the first entry that
-- is left in each lane. I5 says what it proves, I6 whom it waits for, I7 how far its time counts: p_horizon is the
-- horizon before we had our number, null if we have none yet. A time that is given (p_now) is a test's, which sets it
-- back and tells nobody: it proves nothing.
create or replace function duetime.look(p_now bigint, p_horizon bigint, p_lanes integer[], p_floors bigint[])
returns table (now_at bigint, oldest bigint, next bigint, firsts bigint[]) language plpgsql volatile
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
    v_now bigint := coalesce(p_now, duetime.clock());
    v_horizon bigint := coalesce(p_horizon, (select h.last_value from duetime.horizon as h));
    v_own bigint := pg_current_xact_id()::text::bigint;
    v_oldest bigint := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
    v_due oid := to_regclass(format('%I.%I', 'duetime', 'due'));
begin
    if p_now is null then
        perform setval(h.tableoid, greatest(v_now, duetime.moment())) from duetime.horizon as h
            where h.last_value < v_now;
        v_now := least(v_now, v_horizon);
    else
        v_now := 0;
    end if;
    if v_own - v_oldest > 100 and current_setting('transaction_isolation') = 'read committed' then
        with held as materialized (
            select l.locktype, l.transactionid, l.virtualtransaction from pg_locks as l
            where l.granted and (l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' or l.locktype = 'relation'
                and l.mode = 'RowExclusiveLock'
                and l.relation = v_due and l.database = (select d.oid from pg_database as d
                    where d.datname = current_database()))
        ), adding as materialized (
            select array_agg(h.virtualtransaction) as transactions from held as h where h.locktype = 'relation'
        )
        select coalesce(min(v_own - age(h.transactionid)), v_own) into v_oldest from held as h cross join adding as a
        where h.locktype = 'transactionid' and h.virtualtransaction = any (a.transactions);
    end if;
    return query
    select v_now, v_oldest, v_own + 1, array(
        select case when duetime.is_road(l.lane) then (
                select d.pos from duetime.due as d
                where d.lane < 0 and d.lane >> 15 = l.lane and d.pos >= l.floor order by d.pos limit 1)
            else (select d.pos from duetime.due as d where d.lane = l.lane and d.pos >= l.floor order by d.pos limit 1)
            end
        from unnest(p_lanes, p_floors) with ordinality as l (lane, floor, index) order by l.index);
end $$;

-- The first positions of each lane or road that are due, at most p_limit of each; lanes without any are left out.
create or replace function duetime.peek(p_now bigint, p_lanes integer[], p_floors bigint[], p_limit integer,
    p_lead bigint)
returns table (lane integer, positions bigint[]) language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
#variable_conflict use_column
declare
    v_until bigint := coalesce(p_now, duetime.clock()) + p_lead;
begin
    return query
    select l.lane, p.positions from unnest(p_lanes, p_floors) as l (lane, floor)
    cross join lateral (
        select case when duetime.is_road(l.lane) then array(
            select d.pos from duetime.due as d
            where d.lane < 0 and d.lane >> 15 = l.lane and d.pos >= l.floor and d.pos <= v_until
                order by d.pos limit p_limit)
        else array(
            select d.pos from duetime.due as d where d.lane = l.lane and d.pos >= l.floor and d.pos <= v_until
                order by d.pos limit p_limit)
        end as positions
    ) as p
    where p.positions <> '{}';
end $$;
