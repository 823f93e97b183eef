-- lock_artifacts: let versions of artifacts be made one after the other; reading goes on
lock table duetime.artifact in share row exclusive mode

-- insert_upload: an upload that is to come
insert into duetime.upload (name, sha256, size, file, run, note, made_at, made_by, id, unpack, signature, expires_at)
values ($1::text, $2::text, $3::bigint, $4::text, $5::text, $6::text, $7::bigint, $8::text, $9::text, $10::boolean,
    $11::text, $12::bigint) on conflict (id) do nothing

-- get_upload: an upload
select name, sha256, size, file, run, note, made_at, made_by, id, unpack, signature, expires_at, version
from duetime.upload where id = $1::text

-- finish_upload: note which version an upload has become
update duetime.upload set version = $1::bigint where id = $2::text

-- newest_artifact: the newest version of an artifact
select name, sha256, size, file, run, note, made_at, made_by, version, kind from duetime.artifact
where name = $1::text and not removed order by version desc limit 1

-- get_artifact: a version of an artifact
select name, sha256, size, file, run, note, made_at, made_by, version, kind from duetime.artifact
where name = $1::text and version = $2::bigint and not removed

-- last_artifact: the highest number that a version of an artifact ever had
select coalesce(max(version), 0) from duetime.artifact where name = $1::text

-- insert_artifact: a version of an artifact
insert into duetime.artifact (name, sha256, size, file, run, note, made_at, made_by, version, kind)
values ($1::text, $2::text, $3::bigint, $4::text, $5::text, $6::text, $7::bigint, $8::text, $9::bigint, $10::text)

-- all_artifacts: the versions of one artifact, or of all
select name, sha256, size, file, run, note, made_at, made_by, version, kind from duetime.artifact
where not removed and ($1::text is null or name = $1::text) order by name, version desc

-- remove_artifact: take a version away; its row stays, so that its number is never used again
update duetime.artifact set removed = true where name = $1::text and version = $2::bigint and not removed
returning name, sha256, size, file, run, note, made_at, made_by, version, kind

-- needs_blob: whether something has these bytes, or is about to
select exists (select from duetime.artifact where sha256 = $1::text and not removed)
    or exists (select from duetime.upload where sha256 = $1::text and version is null)

-- ended_uploads: uploads whose time is over
select id from duetime.upload where expires_at < $1::bigint order by expires_at, id limit $2::bigint

-- remove_uploads: forget uploads
delete from duetime.upload where id = any ($1::text[])
