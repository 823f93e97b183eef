-- secret_rows: the stored versions of a secret, the newest first, and whether they are live
select version, sealed, until_at is null or until_at > :now from duetime_secret where name = :name order by version desc

-- delete_secret_versions: the versions of a secret that are over, or too old to be among the newest so many
delete from duetime_secret where name = :name and (until_at <= :now or version <= :oldest)

-- end_secret_versions: let the versions of a secret end at an instant, unless they end before
update duetime_secret set until_at = min(coalesce(until_at, :until), :until) where name = :name

-- insert_secret: the newest version of a secret
insert into duetime_secret (name, version, key, sealed, created_at, created_by, until_at) values (?, ?, ?, ?, ?, ?, ?)

-- all_secrets: the live versions of every secret, without values
select name, version, key, created_at, created_by, until_at from duetime_secret
where until_at is null or until_at > :now order by name, version desc

-- sealed_secrets: the live versions of some secrets
select name, version, key, created_at, created_by, until_at, sealed from duetime_secret
where name in (select value from json_each(:names)) and (until_at is null or until_at > :now)
order by name, version desc

-- reseal_secret: another key for a value that is still the stored one
update duetime_secret set key = ?, sealed = ? where name = ? and version = ? and sealed = ?

-- delete_secret: all versions of a secret, and until when they were good; SQLite 3.40 returns 0 for `until_at is null`
delete from duetime_secret where name = ? returning until_at

-- prune_secrets: versions that are over
delete from duetime_secret where until_at <= ?
