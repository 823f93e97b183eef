-- Children that wait for their parents.

-- Keep those of these tasks that live from ending until this transaction has ended, and name them (I15). First those
-- that are whole in `due`, then those that run: a task goes that way, or gets a row in `task` and keeps it. One that a
-- claim puts back at this very moment may be missed, so who finds a task to live that is not named here asks again. An
-- entry that is locked is not claimed, and the ends of a claim's attempts wait for its lock.
create or replace function duetime.lock_parents(p_ids uuid[]) returns uuid[] language plpgsql
set enable_seqscan = off as $$
declare
    v_ids uuid[];
begin
    v_ids := array(select d.id from duetime.due as d where d.id = any (p_ids) and d.payload is not null
        order by d.id for key share);
    perform from duetime.claim as c where (c.worker, c.number) in (select h.worker, h.number
        from duetime.holders(p_ids) as h)
        order by c.worker, c.number for share;
    v_ids := v_ids || array(select r.id from duetime.running(p_ids) as r where r.payload is not null);
    return v_ids || array(select t.id from duetime.task as t where t.id = any (p_ids) order by t.id for key share);
end $$;

-- Say whether somebody may wait for one of these tasks. Ids begin with the time, so those that end together are mostly
-- neighbours, and nobody who waits for a task elsewhere costs them a look-up for each: one look at their range does.
create or replace function duetime.may_be_needed(p_ids uuid[]) returns boolean language plpgsql stable
set enable_seqscan = off as $$
begin
    if not exists (select from duetime.edge) then
        return false;
    end if;
    return exists (select from duetime.edge as e where e.parent >= (select i.id from unnest(p_ids) as i (id)
        order by i.id limit 1) and e.parent <= (select i.id from unnest(p_ids) as i (id) order by i.id desc limit 1));
end $$;

-- Let the children of ended tasks go on, or end those in vain, one generation after the other. Returns the earliest
-- position that a freed child took. Children are locked first, in the order of their ids, and then their edges are
-- taken (I15), as everybody does who ends a child: in the other order a parent's end and its child's cancel would
-- wait for each other. A generation at a time, because a chain may be longer than the server lets functions call
-- each other.
create or replace function duetime.follow(p_now bigint, p_parents uuid[], p_succeeded boolean[])
    returns bigint language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    v_parents uuid[] := p_parents;
    v_succeeded boolean[] := p_succeeded;
    v_children uuid[];
    v_verdicts text[];
    v_of uuid[];
    v_attempts integer[];
    v_tries integer[];
    v_crashes integer[];
    v_errors text[];
    v_earliest bigint;
    v_freed bigint;
begin
    loop
        perform from duetime.held as h
        where h.id in (select e.child from duetime.edge as e where e.parent = any (v_parents)) order by h.id for update;
        with taken as (
            delete from duetime.edge as e using unnest(v_parents, v_succeeded) as p (id, succeeded)
                where e.parent = p.id
            returning e.child, e.parent, case when e.needs = 'success' and not p.succeeded then 'vain'
                else 'met' end as verdict
        ), remembered as (
            insert into duetime.vain (child, parent, needs, ended_at)
            select t.child, t.parent, 'success', p_now from taken as t where t.verdict = 'vain'
        )
        select array_agg(t.child), array_agg(t.verdict), array_agg(t.parent) into v_children, v_verdicts, v_of
            from taken as t;
        exit when v_children is null;
        -- who was queued behind the holder of its key has it now
        update duetime.task as t set queued = false where t.id = any (v_children) and t.queued
            and not exists (select from duetime.task as h where h.handler = any (duetime.names(t.handler))
                and h.key = t.key and not h.queued);
        with vain as (
            select v.child, min(v.parent::text) as parent from unnest(v_children, v_verdicts, v_of) as v (child,
                verdict, parent)
            where v.verdict = 'vain' group by v.child
        ), gone as (
            delete from duetime.held as h using vain as v where h.id = v.child returning h.id, h.attempt, h.tries,
                h.crashes, json_build_object(
                'type', 'PredecessorFailed', 'message',
                    'task ' || v.parent || ', whose success it needed, ended otherwise', 'traceback', '')::text as error
        )
        select array_agg(g.id), array_agg(g.attempt), array_agg(g.tries), array_agg(g.crashes), array_agg(g.error)
        into v_parents, v_attempts, v_tries, v_crashes, v_errors from gone as g;
        update duetime.held as h set waiting = h.waiting - m.n
        from (select c.child, count(*) as n from unnest(v_children) as c (child) group by c.child) as m
            where h.id = m.child;
        with freed as (
            delete from duetime.held as h where h.id = any (v_children) and h.waiting <= 0 returning h.*
        ), placed as (
            insert into duetime.due (lane, pos, id, due_at, expires_at, attempt, tries, crashes)
            select f.lane, greatest(f.due_at, p_now), f.id, f.due_at, f.expires_at, f.attempt, f.tries, f.crashes
                from freed as f returning pos
        )
        select min(p.pos) into v_freed from placed as p;
        v_earliest := least(v_earliest, v_freed);
        exit when v_parents is null;
        perform duetime.record_ends(p_now, 'cancelled', v_errors, v_parents, v_attempts, v_tries, v_crashes);
        with dropped as (
            delete from duetime.edge as e where e.child = any (v_parents) returning e.child, e.parent, e.needs
        )
        insert into duetime.vain (child, parent, needs, ended_at)
        select d.child, d.parent, d.needs, p_now from dropped as d;
        v_succeeded := array_fill(false, array[cardinality(v_parents)]);
    end loop;
    return v_earliest;
end $$;
