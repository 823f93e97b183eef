-- create_versions: remember which migrations ran
create table if not exists duetime_version (version integer primary key, name text not null,
    applied_at integer not null)

-- current_version: the newest migration that ran
select coalesce(max(version), 0) from duetime_version

-- has_versions: whether this database was ever migrated
select count(*) from sqlite_master where type = 'table' and name = 'duetime_version'

-- add_version: written before the migration's own statements, so that a half-done step cannot look undone
insert into duetime_version (version, name, applied_at) values (?, ?, ?)
