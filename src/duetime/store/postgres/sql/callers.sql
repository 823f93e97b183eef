-- whereabouts: which store this connection sees, whether its transaction may write, and whether it has nulls in arrays
-- A copy of the database has the same identity, so the database and its server are named too. Not every service
-- tells of its server.
select c.identity::text || ' ' || d.oid || ' ' || case when has_function_privilege('pg_control_system()', 'execute')
        then (select s.system_identifier::text from pg_control_system() as s) else '' end,
    current_setting('transaction_read_only') = 'on', d.datname::text, current_setting('array_nulls') = 'on'
from duetime.control as c cross join pg_database as d where d.datname = current_database()
