-- one_lock: a lock that somebody holds, or that rests
select name, holder, epoch, number, beat, by, lease, taken_at, beat_at, free_at, rest from duetime_lock where name = ?

-- next_lock_number: a number that no lock had before
update duetime_fact set value = value + 1 where name = 'lock_number' returning value

-- put_lock: take a lock
insert or replace into duetime_lock (name, holder, epoch, number, beat, by, lease, taken_at, beat_at)
values (:name, :holder, :epoch, :number, 1, :by, :lease, :now, :now)

-- renew_lock: its holder lives
update duetime_lock set beat = beat + 1, beat_at = ? where name = ? and holder = ?

-- delete_lock: a lock that is free at once
delete from duetime_lock where name = ? and holder = ?

-- rest_lock: a lock that is free after a while
update duetime_lock set holder = '', free_at = :now + :rest, rest = :rest where name = :name and holder = :holder

-- all_locks: locks that are held or rest
select name, holder, epoch, number, beat, by, lease, taken_at, beat_at, free_at from duetime_lock
where free_at is null or (free_at > :now and free_at - :now <= rest) order by name

-- remove_lock: take a lock from whoever has it
delete from duetime_lock where name = ?

-- prune_locks: locks that are free, or whose holders are long gone
delete from duetime_lock where free_at <= :now or beat_at < :before
