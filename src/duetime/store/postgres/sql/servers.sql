-- put_server: a server is there, or still there; those that have not been heard of for long are forgotten
with clock as materialized (select coalesce($1::bigint, duetime.clock()) as now),
forgotten as (delete from duetime.server as s using clock as c where s.beat_at < c.now - $8::bigint)
insert into duetime.server (id, host, pid, url, version, python, started_at, beat_at)
select $2::text, $3::text, $4::bigint, $5::text, $6::text, $7::text, c.now, c.now from clock as c
on conflict (id) do update set beat_at = excluded.beat_at

-- delete_server: a server that has stopped
delete from duetime.server where id = $1::text returning id

-- all_servers: every server
select id, host, pid, url, version, python, started_at, beat_at from duetime.server order by started_at, id
