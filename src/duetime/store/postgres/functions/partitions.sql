-- Tables of history and attempts by time.

-- Make the table that holds what finished in a span of time. Attaching lets others read and write meanwhile. One
-- that was detached, because its time was over, and not dropped yet, is attached again if the clock was set back so
-- far. It runs with the rights of the schema's owner, so that workers need not have them; temporary tables come last
-- in the path, or a caller could put its own in the place of the server's.
create or replace function duetime.make_partition(p_parent text, p_from bigint, p_to bigint)
    returns void language plpgsql
security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_name text := p_parent || '_' || to_char(to_timestamp(p_from / 1000000) at time zone 'UTC', 'YYYYMMDD');
    v_table regclass := to_regclass(format('%I.%I', 'duetime', v_name));
begin
    if v_table is not null and exists (select from pg_inherits as i where i.inhrelid = v_table) then
        return;
    end if;
    perform pg_advisory_xact_lock(hashtextextended('duetime' || '.' || v_name, 0));
    -- asked of the table itself: what this session remembers of names may be older than the lock
    select c.oid into v_table from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
        where n.nspname = 'duetime' and c.relname = v_name;
    if v_table is null then
        execute format('create table %I.%I (like %I.%I including defaults including constraints)', 'duetime', v_name,
            'duetime', p_parent);
    elsif exists (select from pg_inherits as i where i.inhrelid = v_table) then
        return;
    end if;
    execute format('alter table %I.%I attach partition %I.%I for values from (%s) to (%s)',
        'duetime', p_parent, 'duetime', v_name, p_from, p_to);
end $$;

-- Make the table for what outlives the others of its parent, of which whole tables are dropped. It is found by handler,
-- and there is none before somebody needs it: every look-up by id would open it.
create or replace function duetime.make_kept(p_parent text)
    returns void language plpgsql
security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_name text := p_parent || '_kept';
begin
    if to_regclass(format('%I.%I', 'duetime', v_name)) is not null then
        return;
    end if;
    perform pg_advisory_xact_lock(hashtextextended('duetime' || '.' || v_name, 0));
    -- asked of the table itself: what this session remembers of names may be older than the lock
    if exists (select from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
            where n.nspname = 'duetime' and c.relname = v_name) then
        return;
    end if;
    execute format('create table %I.%I (like %I.%I including defaults including constraints)', 'duetime', v_name,
        'duetime', p_parent);
    if p_parent <> 'attempt' then
        execute format('create index on %I.%I (handler, finished_at, id)', 'duetime', v_name);
    end if;
    execute format('alter table %I.%I attach partition %I.%I for values in (true)', 'duetime', p_parent, 'duetime',
        v_name);
end $$;
