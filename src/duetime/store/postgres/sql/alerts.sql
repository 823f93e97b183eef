-- alert_documents: documents of a kind; null: of every name
select kind, name, version, body from duetime.alerting
where kind = $1::text and ($2::text[] is null or name = any ($2::text[])) order by name

-- lock_alerting: let one change of documents happen at a time, so that versions that are compared stay as they are
lock table duetime.alerting in share row exclusive mode

-- count_unseen: how many documents are not in the version that was seen; '' is none
select count(*) from unnest($1::text[], $2::text[], $3::text[]) as c (kind, name, seen)
left join duetime.alerting as a using (kind, name) where coalesce(a.version, '') <> c.seen

-- put_alert_documents: documents in place of earlier ones
insert into duetime.alerting (kind, name, version, body)
select * from unnest($1::text[], $2::text[], $3::text[], $4::bytea[])
on conflict (kind, name) do update set version = excluded.version, body = excluded.body

-- delete_alert_documents: documents that are over
delete from duetime.alerting as a using unnest($1::text[], $2::text[]) as c (kind, name)
where a.kind = c.kind and a.name = c.name
