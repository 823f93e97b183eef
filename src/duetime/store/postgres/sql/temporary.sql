-- hold_schema: mark a schema as in use, for as long as this session lives
select pg_advisory_lock(hashtextextended('duetime temporary ' || $1::text, 0))

-- try_to_hold_schema: mark a schema as in use, unless another session does
select pg_try_advisory_lock(hashtextextended('duetime temporary ' || $1::text, 0))

-- let_go_of_schema: mark a schema as not in use by this session
select pg_advisory_unlock(hashtextextended('duetime temporary ' || $1::text, 0))

-- temporary_schemas: schemas of this user whose names begin as given
select n.nspname::text from pg_namespace as n where starts_with(n.nspname::text, $1::text)
    and pg_get_userbyid(n.nspowner) = current_user
