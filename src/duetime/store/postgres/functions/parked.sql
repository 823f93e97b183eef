-- Parked tasks: their payload fits no code that has met them, so they wait for a worker that has other code.

-- Let tasks wait for other code that this transaction has settled and put into `due` (I1: nobody else has seen them
-- there), and note which declarations refused them; null: none that is known.
create or replace function duetime.park(p_ids uuid[], p_digests text[]) returns void language plpgsql
set enable_seqscan = off set jit = off as $$
begin
    insert into duetime.refusal (task, digest) select r.task, r.digest from unnest(p_ids, p_digests) as r (task, digest)
        where r.digest is not null order by r.task
    on conflict do nothing;
    with moved as (
        delete from duetime.due as d where d.id = any (p_ids) returning d.*
    )
    insert into duetime.held (id, lane, reason, waiting, due_at, expires_at, attempt, tries, crashes, refused)
    select m.id, m.lane, 'declaration', 0, m.due_at, m.expires_at, m.attempt, m.tries, m.crashes,
        coalesce((select string_agg(r.digest, ' ' order by r.digest) from duetime.refusal as r where r.task = m.id), '')
    from moved as m;
end $$;

-- Let those of these tasks that are parked wait for time alone, because they have another payload: what refused them
-- counts no more.
create or replace function duetime.unpark(p_now bigint, p_ids uuid[]) returns void language plpgsql
set enable_seqscan = off set jit = off as $$
begin
    with freed as (
        delete from duetime.held as h where h.id = any (p_ids) and h.reason in ('declaration', 'limit') returning h.*
    ), forgotten as (
        delete from duetime.refusal as r where r.task = any (p_ids)
    )
    insert into duetime.due (lane, pos, id, due_at, expires_at, attempt, tries, crashes)
    select f.lane, greatest(f.due_at, p_now), f.id, f.due_at, f.expires_at, f.attempt, f.tries, f.crashes
    from freed as f;
end $$;

-- Hand those of these parked tasks to a worker that nobody else has in hand, under a new claim; return the present
-- time, and whether there are any. As by `claim`, a worker must be registered (I19), and nothing is handed out after a
-- fail-over before the store opens (I18); a fail-over that nobody has noticed yet is left for `claim` to notice.
create or replace function duetime.claim_parked(
    p_now bigint, p_worker text, p_number bigint, p_ids uuid[], p_incarnation text, out p_at bigint, out p_any boolean
) language plpgsql set enable_seqscan = off set jit = off as $$
declare
    v_incarnation text := p_incarnation;
begin
    p_at := coalesce(p_now, duetime.clock());
    p_any := false;
    if v_incarnation is null then
        v_incarnation := substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8);
    end if;
    perform from duetime.worker as w where w.id = p_worker and not w.draining for key share;
    if not found or exists (select from duetime.control as c where c.open_at > p_at
        or (c.incarnation not in ('', v_incarnation) and v_incarnation <> 'unknown')) then
        return;
    end if;
    with taken as (
        delete from duetime.held as h where h.id = any (array(
            select x.id from duetime.held as x where x.id = any (p_ids) and x.reason = 'declaration' order by x.id
            for update skip locked))
        returning h.*
    )
    insert into duetime.claim (worker, number, claimed_at, open, done, cancel, first_id, last_id, tasks, lanes, dues,
        expiries, attempts, tries, crashes)
    select p_worker, p_number, p_at, count(*), repeat('0', count(*)::integer)::varbit,
        repeat('0', count(*)::integer)::varbit, (array_agg(t.id order by t.id))[1],
        (array_agg(t.id order by t.id desc))[1], array_agg(t.id order by t.id), array_agg(t.lane order by t.id),
        array_agg(t.due_at order by t.id), array_agg(t.expires_at order by t.id),
        array_agg(t.attempt + 1 order by t.id), array_agg(t.tries order by t.id), array_agg(t.crashes order by t.id)
    from taken as t having count(*) > 0;
    p_any := found;
end $$;
