-- Attempts that have not ended, read out of the arrays of their claims.

-- The attempts that have not ended (I11). Written with `<>`, because the planner takes `=` for one row in two
-- hundred.
create or replace view duetime.open_attempt as
select c.worker, c.number, c.claimed_at, a.index::integer as index, a.id, coalesce(a.lane, c.lanes[1]) as lane,
    a.due_at,
    case when cardinality(c.expiries) = 1 then c.expiries[1] else a.expires_at end as expires_at,
    coalesce(a.attempt, c.attempts[1]) as attempt, coalesce(a.tries, c.tries[1]) as tries,
    coalesce(a.crashes, c.crashes[1]) as crashes, get_bit(c.cancel, a.index::integer - 1) = 1 as cancelling, a.payload,
    coalesce(a.submitted_at, c.submitted[1]) as submitted_at, coalesce(a.submitted_by, c.submitters[1]) as submitted_by,
    c.open
from duetime.claim as c
cross join lateral unnest(c.tasks, c.lanes, c.dues, c.expiries, c.attempts, c.tries, c.crashes, c.payloads, c.submitted,
    c.submitters) with ordinality
    as a (id, lane, due_at, expires_at, attempt, tries, crashes, payload, submitted_at, submitted_by, index)
where get_bit(c.done, a.index::integer - 1) <> 1;

-- The same, as little of it as lists need: with thousands of attempts in each claim every array takes its time.
create or replace view duetime.open_task as
select c.worker, c.number, a.id, coalesce(a.lane, c.lanes[1]) as lane, a.due_at,
    case when cardinality(c.submitted) = 1 then c.submitted[1] else a.submitted_at end as submitted_at, c.last_id
from duetime.claim as c
cross join lateral unnest(c.tasks, c.lanes, c.dues, c.submitted) with ordinality as a (id, lane, due_at, submitted_at,
    index)
where get_bit(c.done, a.index::integer - 1) <> 1;

-- One element in place of many that are all the same.
create or replace function duetime.shared(p_values anyarray) returns anyarray language sql immutable parallel safe as
$$ select case when p_values = array_fill(p_values[1], array[cardinality(p_values)]) then p_values[1:1]
    else p_values end $$;

-- Neighbouring elements, or the one that stands for all.
create or replace function duetime.part(p_values anyarray, p_first integer, p_last integer)
    returns anyarray language sql immutable parallel safe as
$$ select case when cardinality(p_values) = 1 then p_values else p_values[p_first : p_last] end $$;

-- The claims that hold some of these tasks: few of them are compared with each attempt, many are hashed.
create or replace function duetime.holders(p_ids uuid[])
    returns table (worker text, number bigint) language plpgsql stable rows 10 set enable_sort = on as $$
declare
    v_least uuid := (select u.id from unnest(p_ids) as u (id) order by u.id limit 1);
    v_greatest uuid := (select u.id from unnest(p_ids) as u (id) order by u.id desc limit 1);
begin
    if cardinality(p_ids) <= 8 then
        return query select c.worker, c.number from duetime.claim as c
        where c.worker <> '' and c.last_id >= v_least and c.first_id <= v_greatest
        and exists (select from unnest(p_ids) as u (id) where u.id = any (c.tasks));
    else
        return query select c.worker, c.number from duetime.claim as c
        where c.worker <> '' and c.last_id >= v_least and c.first_id <= v_greatest
        and exists (select from unnest(c.tasks) as t (id) where (t.id in (select unnest(p_ids))) is true);
    end if;
    return query select '', a.number from duetime.accepted as a where a.id = any (p_ids);
end $$;

-- Those of these tasks that run, with all that their claims tell of them.
create or replace function duetime.running(p_ids uuid[]) returns setof duetime.open_attempt language plpgsql stable
    rows 10 as $$
begin
    return query select r.* from duetime.holders(p_ids) as h
    cross join lateral (select x.* from duetime.open_attempt as x where x.worker = h.worker
        and x.number = h.number offset 0) as r
    where (r.id in (select unnest(p_ids))) is true;
end $$;
