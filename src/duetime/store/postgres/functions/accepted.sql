-- Attempts whose work somebody outside has accepted.

-- Take attempts from a worker because somebody else does their work now: each moves from its claim into one of its
-- own that nobody holds. Returns the indexes (from 1) of those that were the worker's to say (I11).
create or replace function duetime.accept(
    p_now bigint, p_worker text, p_ids uuid[], p_attempts integer[], p_deadlines bigint[], p_silences bigint[],
    p_locations text[], p_cancel_within bigint
) returns integer[] language plpgsql
set enable_seqscan = off set enable_hashjoin = on set enable_nestloop = off set enable_mergejoin = off
set jit = off as $$
#variable_conflict use_column
declare
    v_now bigint := coalesce(p_now, duetime.clock());
    v_accepted integer[];
    v_numbers regclass := (select s.tableoid from duetime.accepted_number as s);
begin
    perform from duetime.claim as c where c.worker = p_worker and c.tasks && p_ids order by c.number for update;  -- I10
    with running as materialized (
        select p.* from duetime.open_attempt as p where p.worker = p_worker
    ), taken as materialized (
        select s.index::integer as said, r.*, nextval(v_numbers) as own,
            case when r.cancelling then least(s.deadline_at, v_now + p_cancel_within) else s.deadline_at end
                as deadline_at,
            s.silence, s.location
        from unnest(p_ids, p_attempts, p_deadlines, p_silences, p_locations) with ordinality
            as s (id, attempt, deadline_at, silence, location, index)
        join running as r on r.id = s.id and r.attempt = s.attempt
    ), batch as (
        select t.number, count(*) as n, count(*) = t.open as whole from taken as t group by t.number, t.open
    ), closed as (
        delete from duetime.claim as c using batch as b where c.worker = p_worker and c.number = b.number and b.whole
    ), marked as (
        update duetime.claim as c set open = c.open - b.n,
            done = (select bit_or(set_bit(c.done, t.index - 1, 1)) from taken as t where t.number = c.number)
        from batch as b where c.worker = p_worker and c.number = b.number and not b.whole
    ), moved as (
        insert into duetime.claim (worker, number, claimed_at, open, done, cancel, first_id, last_id, tasks, lanes,
            dues, expiries, attempts, tries, crashes, payloads, submitted, submitters)
        select '', t.own, t.claimed_at, 1, '0', case when t.cancelling then '1' else '0' end::varbit, t.id, t.id,
            array[t.id], array[t.lane], array[t.due_at], array[t.expires_at], array[t.attempt], array[t.tries],
            array[t.crashes], case when t.payload is not null then array[t.payload] end,
            case when t.payload is not null then array[t.submitted_at] end,
            case when t.payload is not null then array[t.submitted_by] end
        from taken as t
    ), bounded as (
        insert into duetime.accepted (id, attempt, number, sender, deadline_at, silence, report_at, location,
            withdrawing)
        select t.id, t.attempt, t.own, p_worker, t.deadline_at, t.silence,
            least(t.deadline_at, v_now + t.silence), t.location, t.cancelling and t.location is not null
        from taken as t
    )
    select array_agg(t.said) into v_accepted from taken as t;
    return coalesce(v_accepted, '{}');
end $$;

-- Let the senders of accepted attempts have them again, so that their ends count as the senders'. p_overdue: only
-- those that have timed out. Names their claims.
create or replace function duetime.give_back(p_now bigint, p_ids uuid[], p_attempts integer[], p_overdue boolean)
    returns table (id uuid, attempt integer, worker text, number bigint) language plpgsql
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_now bigint := coalesce(p_now, duetime.clock());
begin
    perform from duetime.claim as c where c.worker = '' and c.number = any (array(
        select a.number from duetime.accepted as a where a.id = any (p_ids))) order by c.number for update;  -- I10
    return query
    with named as materialized (
        select u.id, u.attempt from unnest(p_ids, p_attempts) as u (id, attempt)
    ), gone as (
        delete from duetime.accepted as a where a.id = any (p_ids)
            and ((a.id, a.attempt) in (select n.id, n.attempt from named as n)) is true
            and (not p_overdue or a.report_at <= v_now)
        returning a.id, a.attempt, a.sender, a.number
    ), back as (
        update duetime.claim as c set worker = g.sender from gone as g where c.worker = '' and c.number = g.number
            and c.number = any (array(select x.number from gone as x))
    )
    select g.id, g.attempt, g.sender, g.number from gone as g;
end $$;
