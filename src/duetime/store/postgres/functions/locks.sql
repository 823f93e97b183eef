-- Locks for any code.

-- Take a lock if it is free, or if its holder is still at the beat at which the caller has found it dead. Returns it as
-- it is then. After a fail-over the next epoch begins here as it does with a claim (I18, I20).
create or replace function duetime.take_lock(
    p_now bigint, p_name text, p_holder text, p_by text, p_lease double precision, p_dead_fence bigint,
    p_dead_beat bigint, p_incarnation text
) returns table (
    now_at bigint, name text, holder text, epoch bigint, number bigint, beat bigint, by text, lease double precision,
    taken_at bigint, beat_at bigint, free_at bigint
) language plpgsql as $$
#variable_conflict use_column
declare
    v_now bigint := coalesce(p_now, duetime.clock());
    v_incarnation text := p_incarnation;
begin
    if v_incarnation is null then
        v_incarnation := substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8);
    end if;
    if v_incarnation <> 'unknown' then
        if exists (select from duetime.control as c where c.incarnation <> v_incarnation) then
            perform nextval(s.tableoid) from duetime.set_backs as s
                where exists (select from duetime.control as c where c.incarnation <> '');
            update duetime.control as c set incarnation = v_incarnation, open_at = case when c.incarnation = '' then 0
                else v_now + coalesce((select (max(w.lease) * 1200000)::bigint from duetime.worker as w), 0) end,
                epoch = case when c.incarnation = '' then c.epoch
                    else greatest(c.epoch + 1, v_now / 1000000 - 1767225600) end
            where c.incarnation <> v_incarnation;
        end if;
    end if;
    insert into duetime.lock as k (name, holder, epoch, number, beat, by, lease, taken_at, beat_at)
    values (p_name, p_holder, (select c.epoch from duetime.control as c), (select nextval(s.tableoid)
        from duetime.lock_number as s), 1, p_by,
        p_lease, v_now, v_now)
    on conflict (name) do update set holder = excluded.holder, epoch = excluded.epoch, number = excluded.number,
        beat = 1, by = excluded.by, lease = excluded.lease, taken_at = v_now, beat_at = v_now, free_at = null, rest = 0
    where k.holder <> p_holder and (k.free_at <= v_now or k.free_at - v_now > k.rest or (k.free_at is null
        and k.epoch * 2097152 + k.number = p_dead_fence and k.beat = p_dead_beat));
    return query select v_now, k.name, k.holder, k.epoch, k.number, k.beat, k.by, k.lease, k.taken_at, k.beat_at,
        k.free_at from duetime.lock as k where k.name = p_name;
end $$;
