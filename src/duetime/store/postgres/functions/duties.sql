-- Who performs a duty.

-- Take or keep the turn at a duty, unless somebody else has it; tell who has it then. Whoever asks in vain writes
-- nothing.
create or replace function duetime.take_duty(p_now bigint, p_duty text, p_holder text, p_length bigint,
    p_longest bigint)
returns table (holder text, until_at bigint, now bigint) language plpgsql as $$
declare
    v_now bigint := coalesce(p_now, duetime.clock());
begin
    return query select d.holder, d.until_at, v_now from duetime.duty as d
        where d.name = p_duty and d.holder <> p_holder and d.until_at > v_now and d.until_at <= v_now + p_longest;
    if found then
        return;
    end if;
    return query insert into duetime.duty as d (name, holder, until_at) values (p_duty, p_holder, v_now + p_length)
        on conflict (name) do update set holder = excluded.holder, until_at = excluded.until_at
        where d.holder = p_holder or d.until_at <= v_now or d.until_at > v_now + p_longest
        returning d.holder, d.until_at, v_now;
    if not found then  -- somebody took it in between
        return query select d.holder, d.until_at, v_now from duetime.duty as d where d.name = p_duty;
    end if;
end $$;
