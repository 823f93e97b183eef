-- The store's clock, and how whoever puts entries into `due` begins.

-- The store's time, for conditions: the same within a statement, so an index can be searched by it.
create or replace function duetime.clock() returns bigint language sql stable parallel safe as
$$ select (extract(epoch from statement_timestamp()) * 1000000)::bigint $$;

-- The store's time at this very moment.
create or replace function duetime.moment() returns bigint language sql volatile as
$$ select (extract(epoch from clock_timestamp()) * 1000000)::bigint $$;

-- The same, for positions. Call it after the transaction has its number and the lock on `due` (I4). A writer that finds
-- the clock behind the horizon tells everybody at once, whatever becomes of its transaction (I7). The horizon is read
-- first: it is never ahead of a clock that is read later, unless that was set back.
create or replace function duetime.present() returns bigint language plpgsql volatile as $$
declare
    v_horizon bigint := (select h.last_value from duetime.horizon as h);
    v_now bigint := duetime.moment();
begin
    if v_now < v_horizon then
        perform nextval(s.tableoid) from duetime.set_backs as s;
        perform setval(h.tableoid, v_now) from duetime.horizon as h;
        -- somebody may have looked between the two, whose horizon is gone now
        perform nextval(s.tableoid) from duetime.set_backs as s;
    end if;
    return v_now;
end $$;

-- How whoever puts entries into `due` begins (I4): its number, then the lock by which looks know it, then the clock.
create or replace function duetime.begin_adding(p_now bigint) returns bigint language plpgsql volatile as $$
begin
    perform pg_current_xact_id();
    lock table duetime.due in row exclusive mode;
    return coalesce(p_now, duetime.present());
end $$;
