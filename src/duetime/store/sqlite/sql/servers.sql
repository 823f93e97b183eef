-- put_server: a server is there, or still there
insert into duetime_server (id, host, pid, url, version, python, started_at, beat_at) values (?, ?, ?, ?, ?, ?, ?, ?)
on conflict (id) do update set beat_at = excluded.beat_at

-- delete_silent_servers: servers that have not been heard of for long
delete from duetime_server where beat_at < ?

-- delete_server: a server that has stopped
delete from duetime_server where id = ?

-- all_servers: every server
select id, host, pid, url, version, python, started_at, beat_at from duetime_server order by started_at, id
