-- lock_secrets: let writes of secrets take turns, so that what is looked at before stays true; reading goes on
lock table duetime.secret in share row exclusive mode

-- secret_rows: the stored versions of a secret, the newest first, and whether they are live
select version, sealed, until_at is null or until_at > coalesce($2::bigint, duetime.clock())
from duetime.secret where name = $1::text order by version desc

-- delete_secret_versions: the versions of a secret that are over, or too old to be among the newest so many
delete from duetime.secret where name = $1::text
    and (until_at <= coalesce($2::bigint, duetime.clock()) or version <= $3::bigint)

-- end_secret_versions: let the versions of a secret end at an instant, unless they end before
update duetime.secret set until_at = least(until_at, $2::bigint) where name = $1::text

-- insert_secret: the newest version of a secret
insert into duetime.secret (name, version, key, sealed, created_at, created_by, until_at)
values ($1::text, $2::bigint, $3::text, $4::text, $5::bigint, $6::text, $7::bigint)

-- all_secrets: the live versions of every secret, without values
select name, version, key, created_at, created_by, until_at from duetime.secret
where until_at is null or until_at > coalesce($1::bigint, duetime.clock()) order by name, version desc

-- sealed_secrets: the live versions of some secrets
select name, version, key, created_at, created_by, until_at, sealed from duetime.secret
where name = any ($1::text[]) and (until_at is null or until_at > coalesce($2::bigint, duetime.clock()))
order by name, version desc

-- reseal_secret: another key for a value that is still the stored one
update duetime.secret set key = $1::text, sealed = $2::text
where name = $3::text and version = $4::bigint and sealed = $5::text returning version

-- delete_secret: all versions of a secret, and whether they were live
delete from duetime.secret where name = $1::text
returning until_at is null or until_at > coalesce($2::bigint, duetime.clock())

-- prune_secrets: versions that are over
with gone as (
    delete from duetime.secret where until_at <= coalesce($1::bigint, duetime.clock()) returning version
)
select count(*) from gone
