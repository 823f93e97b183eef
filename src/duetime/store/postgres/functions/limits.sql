-- Limits of the whole fleet, and the permits that workers have of them.

-- What attempts that go on elsewhere take of a limit: accepted ones, and those of pull workers.
create or replace function duetime.accepted_of(p_uses jsonb) returns bigint language sql stable as $$
    select coalesce((select sum((p_uses ->> l.handler)::integer) from duetime.accepted as a
        join duetime.claim as c on c.worker = '' and c.number = a.number
        join duetime.lane as l on l.id = c.lanes[1]), 0)
    + coalesce((select sum((p_uses ->> l.handler)::integer) from duetime.worker as w
        join duetime.open_task as o on o.worker = w.id join duetime.lane as l on l.id = o.lane
        where w.pull_lease is not null), 0)
$$;

-- Whether attempts of handlers take different numbers of a limit.
create or replace function duetime.is_mixed(p_uses jsonb) returns boolean language sql immutable as $$
    select count(distinct u.value) > 1 from jsonb_each_text(p_uses) as u
$$;

-- How much is left of limits that a pull worker's handlers have, whose rows are locked: nobody is granted permits until
-- the claim is committed that goes by this, and who comes then counts what it has claimed. Nothing is left while a
-- worker is waited for. After a fail-over nothing is left before the store opens (I18); the claim itself says so.
create or replace function duetime.left_of_limits(p_now bigint, p_names text[])
returns table (name text, uses text, free bigint) language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_now bigint := coalesce(p_now, duetime.clock());
begin
    perform from duetime.fleet_limit as f where f.name = any (p_names) order by f.name for update;
    return query
    select f.name, f.uses::text, case when duetime.is_mixed(f.uses)
            and exists (select from duetime.permit as p where p.name = f.name and p.since is not null) then 0
        else case when f.own is null or f.until_at <= v_now then f.declared else f.own end
            - coalesce((select sum(p.permits) from duetime.permit as p where p.name = f.name), 0)
            - duetime.accepted_of(f.uses) end
    from duetime.fleet_limit as f where f.name = any (p_names);
end $$;

-- Let a worker have permits, as model.limit.granted says. The row of the limit is locked before permits are added up,
-- in a statement of its own, so all permits that were given before are seen. A worker that asks is not reaped
-- meanwhile (I19), and after a fail-over nobody gets more before the store opens (I18). `tells`: others should look;
-- `yields`: another worker has waited longer (model.limit.yields).
create or replace function duetime.allot(
    p_now bigint, p_worker text, p_number bigint, p_limits text[], p_declared integer[], p_uses text[],
    p_held integer[], p_want integer[], p_seen bigint[], p_least integer[], p_need integer[], p_waited bigint[],
    p_incarnation text
) returns table (
    name text, permits integer, running integer, version bigint, out_in_all bigint, lacking bigint, sharing bigint,
    mixed boolean, yields boolean, tells boolean
) language plpgsql set jit = off as $$
#variable_conflict use_column
declare
    v_now bigint := coalesce(p_now, duetime.clock());
    v_incarnation text := p_incarnation;
    v_closed boolean;
    v_limit record;
    v_before record;
    v_others bigint;
    v_since bigint;
begin
    if v_incarnation is null then
        v_incarnation := substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8);
    end if;
    perform from duetime.worker as w where w.id = p_worker for key share;
    if not found then
        return;
    end if;
    insert into duetime.fleet_limit as f (name, declared, uses)
    select u.name, u.declared, u.uses::jsonb from unnest(p_limits, p_declared, p_uses) as u (name, declared, uses)
    order by u.name
    on conflict (name) do update set declared = excluded.declared, uses = f.uses || excluded.uses,
        version = f.version + case when f.declared <> excluded.declared then 1 else 0 end
    where f.declared <> excluded.declared or not f.uses @> excluded.uses;
    perform from duetime.fleet_limit as f where f.name = any (p_limits) order by f.name for update;
    v_closed := exists (select from duetime.control as c where c.open_at > v_now
        or (c.incarnation not in ('', v_incarnation) and v_incarnation <> 'unknown'));
    for v_limit in select f.*, u.held, u.want, u.seen, u.least, u.need, u.waited
        from unnest(p_limits, p_held, p_want, p_seen, p_least, p_need, p_waited)
            as u (name, held, want, seen, least, need, waited)
        join duetime.fleet_limit as f on f.name = u.name
    loop
        select p.permits, p.wanted, p.number, p.since into v_before from duetime.permit as p
            where p.name = v_limit.name and p.worker = p_worker;
        continue when v_before.number >= p_number;
        name := v_limit.name;
        version := v_limit.version;
        running := case when v_limit.own is null or v_limit.until_at <= v_now then v_limit.declared
            else v_limit.own end;
        select coalesce(sum(p.permits), 0), coalesce(sum(greatest(p.wanted - p.permits, 0)), 0),
            count(*) filter (where p.wanted > 0 or p.permits > 0) + 1
        into v_others, lacking, sharing from duetime.permit as p where p.name = v_limit.name and p.worker <> p_worker;
        v_others := v_others + duetime.accepted_of(v_limit.uses);
        mixed := duetime.is_mixed(v_limit.uses);
        v_since := case when v_limit.waited > 0 then v_now - v_limit.waited end;
        yields := mixed and exists (select from duetime.permit as p where p.name = v_limit.name and p.worker <> p_worker
            and p.since is not null and (v_since is null or (p.since, p.worker) < (v_since, p_worker)));
        permits := least(v_limit.want, running - v_others);
        permits := case when v_closed or yields or permits < v_limit.least then v_limit.held
            else greatest(v_limit.held, permits) end;
        out_in_all := v_others + permits;
        if permits >= v_limit.least then
            v_since := null;
        end if;
        insert into duetime.permit as p (name, worker, permits, wanted, seen, number, since)
        values (v_limit.name, p_worker, permits, v_limit.need, v_limit.seen, p_number, v_since)
        on conflict (name, worker) do update set permits = excluded.permits, wanted = excluded.wanted,
            seen = excluded.seen, number = excluded.number, since = excluded.since;
        tells := (permits < coalesce(v_before.permits, 0) and lacking > 0) or (permits < v_limit.want
            and (coalesce(v_before.wanted, 0) <= coalesce(v_before.permits, 0) or v_limit.need > v_before.wanted))
            or (v_since is null) <> (v_before.since is null);
        return next;
    end loop;
end $$;
