-- whereabouts: which store this connection sees, and whether its transaction may write
-- A copy of the database has the same identity, so the database and its server are named too. Not every service
-- tells of its server.
select c.identity::text || ' ' || d.oid || ' ' || case when has_function_privilege('pg_control_system()', 'execute')
        then (select s.system_identifier::text from pg_control_system() as s) else '' end,
    current_setting('transaction_read_only') = 'on', d.datname::text
from duetime.control as c cross join pg_database as d where d.datname = current_database()
