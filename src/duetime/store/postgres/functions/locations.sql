-- Where live tasks are (I1). Whoever adds a location adds it to both the view and `locate`.

-- All locations of all live tasks; of those that are held, 'parked' tells which wait for other code. `whole`: the
-- location holds all there is of the task, which has no row in `task`.
-- It opens every claim, so it is for those who look at the whole store.
create or replace view duetime.location as
select d.id, 'due' as location, d.lane, d.payload is not null as whole from duetime.due as d
union all
select h.id, case when h.reason in ('declaration', 'limit') then 'parked' else 'held' end, h.lane, false
from duetime.held as h
union all
select r.id, case r.worker when '' then 'accepted' else 'claim' end, r.lane, r.submitted_at is not null
from duetime.open_task as r;

-- The locations of these tasks, with what each tells. Claims are opened only for those that wait nowhere.
-- Verbs that must be fast or must lock look for themselves, and say so: `underway` (repeats by id), `claim`, `settle`,
-- `lock_waiting`, `lock_parents`, the cancel's `lock_claims`.
create or replace function duetime.locate(p_ids uuid[])
returns table (
    id uuid, location text, lane integer, whole boolean, due_at bigint, attempt integer, tries integer,
    crashes integer, payload text, submitted_at bigint, submitted_by text, worker text, claimed_at bigint,
    cancelling boolean
) language plpgsql stable rows 1000 set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
begin
    return query
    with waiting as materialized (
        select d.id, 'due' as location, d.lane, d.payload is not null as whole, d.due_at, d.attempt, d.tries, d.crashes,
            d.payload, d.submitted_at, d.submitted_by
        from duetime.due as d where d.id = any (p_ids)
        union all
        select h.id, case when h.reason in ('declaration', 'limit') then 'parked' else 'held' end, h.lane, false,
            h.due_at,
            h.attempt, h.tries, h.crashes, null, null, null
        from duetime.held as h where h.id = any (p_ids)
    )
    select w.*, null::text, null::bigint, false from waiting as w
    union all
    select r.id, case r.worker when '' then 'accepted' else 'claim' end, r.lane, r.payload is not null, r.due_at,
        r.attempt, r.tries, r.crashes, r.payload, r.submitted_at, r.submitted_by, nullif(r.worker, ''), r.claimed_at,
        r.cancelling
    from duetime.running(array(
        select i.id from unnest(p_ids) as i (id) where (i.id in (select w.id from waiting as w)) is not true
    )) as r;
end $$;

-- Those of these tasks that live, wherever they are: they have a row in `task`, or a location that holds them whole.
create or replace function duetime.living(p_ids uuid[]) returns setof uuid language plpgsql stable rows 1000
set enable_seqscan = off set jit = off as $$
begin
    return query
    select t.id from duetime.task as t where t.id = any (p_ids)
    union
    select l.id from duetime.locate(p_ids) as l where l.whole;
end $$;
