-- take_lock: take a lock if it is free, or its holder dead, and say who has it
select now_at, name, holder, epoch, number, beat, by, lease, taken_at, beat_at, free_at
from duetime.take_lock($1::bigint, $2::text, $3::text, $4::text, $5::double precision, $6::bigint, $7::bigint,
    $8::text)

-- renew_lock: its holder lives
update duetime.lock set beat = beat + 1, beat_at = coalesce($1::bigint, duetime.clock())
where name = $2::text and holder = $3::text returning name

-- delete_lock: a lock that is free at once
delete from duetime.lock where name = $1::text and holder = $2::text returning name

-- rest_lock: a lock that is free after a while
update duetime.lock set holder = '', free_at = coalesce($1::bigint, duetime.clock()) + $4::bigint, rest = $4::bigint
where name = $2::text and holder = $3::text returning name

-- all_locks: locks that are held or rest
select n.now, name, holder, epoch, number, beat, by, lease, taken_at, beat_at, free_at
from duetime.lock cross join (select coalesce($1::bigint, duetime.clock()) as now) as n
where free_at is null or (free_at > n.now and free_at - n.now <= rest) order by name

-- remove_lock: take a lock from whoever has it
delete from duetime.lock where name = $1::text returning name

-- prune_locks: locks that are free, or whose holders are long gone
delete from duetime.lock where free_at <= coalesce($1::bigint, duetime.clock()) or beat_at < $2::bigint returning name
