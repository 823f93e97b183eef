-- Quotas of submissions; `model.quota.spend` has the rule.

-- Take what is asked of each handler's quota, if there is enough; returns for how many microseconds to wait instead, in
-- the order in which was asked. Rows are locked in the order of their names.
create or replace function duetime.spend_quotas(p_now bigint, p_handlers text[], p_costs bigint[], p_allowed bigint[])
returns table (wait bigint) language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_now bigint;
    v_ask record;
    v_base bigint;
    v_waits bigint[] := array_fill(0::bigint, array[cardinality(p_handlers)]);
begin
    for v_ask in
        select coalesce(a.name, q.handler) as handler, q.cost, q.allowed, q.index
        from unnest(p_handlers, p_costs, p_allowed) with ordinality as q (handler, cost, allowed, index)
        left join duetime.alias as a on a.alias = q.handler order by 1, q.index
    loop
        insert into duetime.quota (handler, used_until) values (v_ask.handler, 0) on conflict do nothing;
        select x.used_until into v_base from duetime.quota as x where x.handler = v_ask.handler for update;
        v_now := coalesce(p_now, duetime.present());  -- who waited for the row has not waited for nothing
        v_base := least(greatest(v_base, v_now), v_now + v_ask.allowed);
        if v_base + v_ask.cost - v_now > v_ask.allowed then
            v_waits[v_ask.index] := v_base + v_ask.cost - v_now - v_ask.allowed;
        else
            update duetime.quota as x set used_until = v_base + v_ask.cost where x.handler = v_ask.handler;
        end if;
    end loop;
    return query select w.wait from unnest(v_waits) with ordinality as w (wait, index) order by w.index;
end $$;
