-- insert_requests: those whose key the caller has not used before; in the order of keys, so that no two wait for each
-- other
insert into duetime.request (caller, key, digest, task, at)
select r.caller, r.key, r.digest, r.task, coalesce($1::bigint, duetime.clock())
from unnest($2::text[], $3::text[], $4::text[], $5::text[]) with ordinality as r (caller, key, digest, task, index)
order by r.caller, r.key, r.index
on conflict do nothing
returning caller, key, digest, task, met

-- requests_by_key: what is stored under these keys
select r.caller, r.key, r.digest, r.task, r.met
from duetime.request as r join unnest($1::text[], $2::text[]) as u (caller, key) on r.caller = u.caller
    and r.key = u.key

-- move_requests: to the tasks that they were answered with
update duetime.request as r set task = u.task, met = true
from unnest($1::text[], $2::text[], $3::text[]) as u (caller, key, task)
where r.caller = u.caller and r.key = u.key

-- forget_requests: those that were refused
delete from duetime.request as r using unnest($1::text[], $2::text[]) as u (caller, key)
where r.caller = u.caller and r.key = u.key

-- delete_requests: the oldest ones
with gone as (
    delete from duetime.request as r
    using (select q.caller, q.key from duetime.request as q where q.at < $1::bigint order by q.at
        limit $2::bigint) as old
    where r.caller = old.caller and r.key = old.key
    returning r.key
)
select count(*) from gone
