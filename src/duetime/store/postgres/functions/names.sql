-- Handlers that were renamed.

-- All names of the handler that has or had a name: the present one first, then its aliases.
create or replace function duetime.names(p_name text) returns text[] language sql stable parallel safe as $$
    with present as materialized (
        select coalesce((select a.name from duetime.alias as a where a.alias = p_name), p_name) as name
    )
    select array(select p.name from present as p
        union all select a.alias from duetime.alias as a join present as p on a.name = p.name)
$$;
