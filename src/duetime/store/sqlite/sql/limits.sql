-- declare_limit: a limit as code declares it; one that is declared differently takes another version
insert into duetime_limit (name, declared, uses) values (?1, ?2, ?3)
on conflict (name) do update set declared = excluded.declared, uses = json_patch(uses, excluded.uses),
    version = version + (declared <> excluded.declared)
where declared <> excluded.declared or json_patch(uses, excluded.uses) <> uses

-- limit: one limit
select declared, uses, version, own, until_at from duetime_limit where name = ?

-- others_permits: what other workers have, lack and how many they are
select coalesce(sum(permits), 0), coalesce(sum(max(wanted - permits, 0)), 0),
    coalesce(sum(wanted > 0 or permits > 0), 0)
from duetime_permit where name = ? and worker <> ?

-- accepted_by_handler: attempts that go on elsewhere: accepted ones, and those of pull workers
select l.handler, count(*) from duetime_running as r join duetime_lane as l on l.id = r.lane
where r.worker = '' or r.worker in (select id from duetime_worker where lease is not null) group by l.handler

-- permit: what a worker has
select permits, wanted, number from duetime_permit where name = ? and worker = ?

-- put_permit: what a worker has from now on
insert or replace into duetime_permit (name, worker, permits, wanted, seen, number) values (?, ?, ?, ?, ?, ?)

-- delete_permits: a worker is gone
delete from duetime_permit where worker = ?

-- put_limit: what an operator has set
update duetime_limit set own = ?2, until_at = ?3, note = ?4, set_by = ?5, set_at = ?6, version = version + 1
where name = ?1 returning version

-- all_limits: every limit
select name, declared, uses, version, own, until_at, note, set_by, set_at from duetime_limit order by name

-- all_permits: what every worker has
select name, worker, permits, wanted, seen from duetime_permit order by name, worker
