-- Lanes, and the roads that those with a collection lie on.

-- Make lanes that are missing, one caller at a time. Numbers of roads and of lanes on them follow from the names where
-- they are free: whoever makes a lane again after a fail-over most probably gives it the number that it had.
create or replace function duetime.make_lanes(p_handlers text[], p_collections text[], p_priorities smallint[])
returns void language plpgsql set enable_seqscan = off set jit = off as $$
declare
    v_version bigint := (select c.lanes_version from duetime.control as c for update);
    v_added bigint;
    v_all bigint := 0;
    v_new record;
    v_road integer;
    v_missing text[];
begin
    insert into duetime.lane (handler, collection, priority)
    select u.* from unnest(p_handlers, p_collections, p_priorities) as u (handler, collection, priority)
        where u.collection = '' on conflict do nothing;
    get diagnostics v_all = row_count;
    for v_new in select distinct u.handler, u.priority
        from unnest(p_handlers, p_collections, p_priorities) as u (handler, collection, priority)
        where u.collection <> ''
    loop
        v_road := (select l.id >> 15 from duetime.lane as l where l.handler = v_new.handler
            and l.priority = v_new.priority and l.id < 0 limit 1);
        if v_road is null then
            v_road := -4 - abs(hashtext(v_new.handler || ' ' || v_new.priority) % 65533);
            while exists (select from duetime.lane as l where l.id between v_road << 15 and (v_road << 15) + 32767) loop
                v_road := -4 - (random() * 65532)::integer;
            end loop;
        end if;
        v_missing := array(select u.collection
            from unnest(p_handlers, p_collections, p_priorities) as u (handler, collection, priority)
            where u.handler = v_new.handler and u.priority = v_new.priority and u.collection <> '');
        for v_try in 0 .. 100 loop
            v_missing := array(select u.collection from unnest(v_missing) as u (collection)
                left join lateral (
                    select l.id from duetime.lane as l where l.handler = v_new.handler and l.collection = u.collection
                    and l.priority = v_new.priority offset 0
                ) as known on true where known.id is null);
            exit when v_missing = '{}';
            insert into duetime.lane (id, handler, collection, priority)
            select (v_road << 15) + case v_try when 0 then hashtext(u.collection) & 32767
                else (random() * 32767)::integer end, v_new.handler, u.collection, v_new.priority
            from unnest(v_missing) as u (collection) on conflict do nothing;
            get diagnostics v_added = row_count;
            v_all := v_all + v_added;
        end loop;
    end loop;
    if v_all > 0 then
        update duetime.control set lanes_version = v_version + 1;
    end if;
end $$;

-- Whether a number of a claim's lane means a road.
create or replace function duetime.is_road(p_lane integer) returns boolean language sql immutable parallel safe as $$
    select p_lane between -65536 and -1
$$;
