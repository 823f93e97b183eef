-- What is known of ids: whether they were seen before, and how far they are ahead of the clock.

-- Whether any of these ids may have finished. p_least is the least of them; no task with such an id can have
-- finished before p_since. New ids are almost always greater than all that have finished, and to know that takes one
-- look at the end of each index.
create or replace function duetime.may_be_known(p_least uuid, p_since bigint) returns boolean language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off as $$
begin
    return coalesce(p_least <= (select h.id from duetime.history as h where h.finished_at >= p_since order by h.id desc
        limit 1), false);
end $$;

-- Which of these ids are of tasks that run, or wait for others: the second look of I13. It looks for itself and does
-- not ask `locate`, because every add does it: whoever adds a location adds it here.
create or replace function duetime.underway(p_least uuid, p_ids uuid[]) returns uuid[] language plpgsql volatile
set enable_seqscan = off set jit = off as $$
begin
    return array(
        select r.id from (select c.tasks, c.done from duetime.claim as c where c.worker <> '' and c.last_id >= p_least
            offset 0) as c
        cross join lateral unnest(c.tasks) with ordinality as r (id, index)
        where r.id >= p_least and (r.id in (select unnest(p_ids))) is true and get_bit(c.done, r.index::integer - 1) = 0
        union all
        select a.id from duetime.accepted as a where a.id >= p_least and (a.id in (select unnest(p_ids))) is true
        union all
        select h.id from duetime.held as h where h.id >= p_least and (h.id in (select unnest(p_ids))) is true);
end $$;

-- Remember that ids are ahead of the moment at which their tasks are submitted, in the transaction that adds them
-- (I17). Generously, so that it is written a few times only: up to the next power of two, and for all time if it is
-- a second at most, which clocks of different machines often are apart. Clocks that are wrong by more are put right
-- one day, so for an hour at least.
create or replace function duetime.note_ahead(p_newest bigint, p_now bigint) returns void language plpgsql as $$
declare
    v_lead bigint := 16384;
begin
    if exists (select from duetime.ahead as a where a.lead >= p_newest - p_now and a.until > p_newest) then
        return;
    end if;
    while v_lead < p_newest - p_now loop
        v_lead := v_lead * 2;
    end loop;
    insert into duetime.ahead (lead, until)
    values (v_lead, case when v_lead <= 1048576 then 9223372036854775807 else p_newest + greatest(v_lead,
        3600000000) end);
end $$;

-- The greatest id that a task can have which was submitted before an instant: ids begin with 48 bits of milliseconds.
create or replace function duetime.last_id_before(p_instant bigint)
    returns uuid language plpgsql stable parallel safe as $$
declare
    v_instant bigint := least(greatest(p_instant, 1), 281474976710656000);
begin
    v_instant := greatest(v_instant, (select max(least(v_instant + a.lead, a.until)) from duetime.ahead as a));
    return (lpad(to_hex(least((v_instant - 1) / 1000, 281474976710655)), 12, '0') || repeat('f', 20))::uuid;
end $$;
