-- schedule_versions: what is stored of these schedules
select name, version from duetime_schedule where name in (select value from json_each(?))

-- put_schedule: write a schedule whose version was checked
insert into duetime_schedule (name, version, id, handler, collection, revision, next_at, waits, paused, declared,
    created_at, changed_at, changed_by, spec, state) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (name) do update set version = excluded.version, id = excluded.id, handler = excluded.handler,
    collection = excluded.collection, revision = excluded.revision, next_at = excluded.next_at, waits = excluded.waits,
    paused = excluded.paused, declared = excluded.declared, created_at = excluded.created_at,
    changed_at = excluded.changed_at, changed_by = excluded.changed_by, spec = excluded.spec, state = excluded.state

-- move_schedules: let schedules go on that are stored at the expected version, [name, expected, next_at, paused, state]
-- each, in one step
update duetime_schedule as s set version = (m.value ->> 1) + 1, next_at = m.value ->> 2, paused = m.value ->> 3,
    state = m.value ->> 4
from json_each(?) as m where s.name = m.value ->> 0 and s.version = m.value ->> 1

-- delete_schedules: schedules that are wanted no more
delete from duetime_schedule where name in (select value from json_each(?))

-- insert_skip: occurrences that became no task
insert into duetime_skip (schedule, planned_at, until_at, count, reason, at, note) values (?, ?, ?, ?, ?, ?, ?)

-- due_schedules: those whose time has come, the longest waiting first, without those of closed handlers and collections
select name, version, id, revision, next_at, declared, created_at, changed_at, changed_by, spec, state
    from duetime_schedule
where next_at <= :now and (next_at, name) > (:at, :name) and handler not in (select value from json_each(:handlers))
and (handler, collection) not in (select value ->> 0, value ->> 1 from json_each(:pairs))
order by next_at, name limit :limit

-- next_schedule: when the next one's time comes
select next_at from duetime_schedule
where next_at > :now and handler not in (select value from json_each(:handlers))
and (handler, collection) not in (select value ->> 0, value ->> 1 from json_each(:pairs))
order by next_at, name limit 1

-- waiting_schedules: which of these wait for the end of a run
select name from duetime_schedule where name in (select value from json_each(:names)) and waits
    and coalesce(next_at, :now + 1) > :now

-- wake_schedules: have them looked at now
update duetime_schedule set next_at = :now
where name in (select value from json_each(:names)) and waits and coalesce(next_at, :now + 1) > :now

-- schedules_by_name: schedules by name
select name, version, id, revision, next_at, declared, created_at, changed_at, changed_by, spec, state
    from duetime_schedule
where name in (select value from json_each(?))

-- list_schedules: a page of schedules in the order of their names
select name, version, id, revision, next_at, declared, created_at, changed_at, changed_by, spec, state
    from duetime_schedule
where name > :after and name >= :prefix and (:prefix_end is null or name < :prefix_end)
    and (:handler is null or handler in (select value from json_each(:handler)))
and (:paused is null or paused = :paused) and (:declared is null or (declared is not null) = :declared)
order by name limit :limit

-- skips_of: occurrences of a schedule that became no task, the latest planned first
select schedule, planned_at, until_at, count, reason, at, note from duetime_skip
where schedule = :schedule and planned_at < coalesce(:before, 9223372036854775807) order by planned_at desc, seq desc
    limit :limit

-- delete_skips: those that were decided long ago
delete from duetime_skip where seq in (select seq from duetime_skip where at < ? order by at limit ?)

-- has_calendar: whether there is a calendar of this name
select 1 from duetime_calendar where name = ?

-- put_calendar: store a calendar
insert or replace into duetime_calendar (name, definition) values (?, ?)

-- delete_calendar: a calendar that is wanted no more
delete from duetime_calendar where name = ?

-- all_calendars: every calendar
select name, definition from duetime_calendar order by name

-- duty_lease: who has the lease of a duty
select holder, until_at from duetime_duty where name = ?

-- put_duty_lease: give it to somebody
insert or replace into duetime_duty (name, holder, until_at) values (?, ?, ?)

-- end_duty_lease: end somebody's lease, and remember whose it was
update duetime_duty set until_at = min(until_at, :now) where name = :name and holder = :holder

-- all_duty_leases: every lease, also those that are over
select name, holder, until_at from duetime_duty order by name
