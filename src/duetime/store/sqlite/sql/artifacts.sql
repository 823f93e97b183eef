-- insert_upload: an upload that is to come
insert into duetime_upload (name, sha256, size, file, run, note, made_at, made_by, id, unpack, signature, expires_at)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict (id) do nothing

-- get_upload: an upload
select name, sha256, size, file, run, note, made_at, made_by, id, unpack, signature, expires_at, version
from duetime_upload where id = ?

-- finish_upload: note which version an upload has become
update duetime_upload set version = ? where id = ?

-- newest_artifact: the newest version of an artifact
select name, sha256, size, file, run, note, made_at, made_by, version, kind from duetime_artifact
where name = ? and not removed order by version desc limit 1

-- get_artifact: a version of an artifact
select name, sha256, size, file, run, note, made_at, made_by, version, kind from duetime_artifact
where name = ? and version = ? and not removed

-- last_artifact: the highest number that a version of an artifact ever had
select coalesce(max(version), 0) from duetime_artifact where name = ?

-- insert_artifact: a version of an artifact
insert into duetime_artifact (name, sha256, size, file, run, note, made_at, made_by, version, kind)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- all_artifacts: the versions of one artifact, or of all
select name, sha256, size, file, run, note, made_at, made_by, version, kind from duetime_artifact
where not removed and name = coalesce(:name, name) order by name, version desc

-- remove_artifact: take a version away; its row stays, so that its number is never used again
update duetime_artifact set removed = 1 where name = ? and version = ?

-- needs_blob: whether something has these bytes, or is about to
select exists (select 1 from duetime_artifact where sha256 = :sha256 and not removed)
    or exists (select 1 from duetime_upload where sha256 = :sha256 and version is null)

-- ended_uploads: uploads whose time is over
select id from duetime_upload where expires_at < ? order by expires_at, id limit ?

-- remove_uploads: forget uploads
delete from duetime_upload where id in (select value from json_each(?))
