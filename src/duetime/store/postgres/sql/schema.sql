-- lock_migrations: let one process migrate at a time
select pg_advisory_xact_lock(hashtextextended('duetime migrate ' || 'duetime', 0))

-- encoding: how the database keeps text, and its name
select current_setting('server_encoding'), current_database()::text

-- has_schema: whether the schema is there
select exists (select from pg_namespace where nspname = 'duetime')

-- has_versions: whether the table of versions is there
select exists (select from pg_class as c join pg_namespace as n on n.oid = c.relnamespace where n.nspname = 'duetime'
    and c.relname = 'version')

-- create_versions: the table of versions
create table duetime.version (version integer primary key, name text not null, applied_at bigint not null)

-- current_version: how far the tables are
select coalesce(max(version), 0) from duetime.version

-- current_functions: which functions the schema has
select f.version, f.digest from duetime.functions as f

-- note_functions: which functions are being made
insert into duetime.functions as f (version, digest, made_at) values ($1::integer, $2::text, $3::bigint)
on conflict (one) do update set version = excluded.version, digest = excluded.digest, made_at = excluded.made_at

-- add_version: a step that is being taken
insert into duetime.version (version, name, applied_at) values ($1::integer, $2::text, $3::bigint)
