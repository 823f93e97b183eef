-- write_schedules: write schedules whose version is the expected one, in the order of their names
select w.p_written, w.p_at from duetime.write_schedules($1::bigint, $2::text::text[], $3::text::bigint[],
    $4::text::text[], $5::text::text[],
    $6::text::text[], $7::text::bigint[], $8::text::bigint[], $9::text::boolean[], $10::text::boolean[],
        $11::text::bigint[], $12::text::bigint[],
    $13::text::bigint[], $14::text::text[], $15::text::text[], $16::text::text[]) as w

-- move_schedules: let schedules whose version is the expected one go on, in the order of their names
select w.p_written, w.p_at from duetime.move_schedules($1::bigint, $2::text::text[], $3::text::bigint[],
    $4::text::bigint[], $5::text::boolean[],
    $6::text::text[]) as w

-- fire_schedules: the same, with tasks that wait for time alone; refused if one of the schedules has changed
select f.p_at, f.p_added from duetime.fire_schedules($19::bigint, $20::text::text[], $21::text::bigint[],
    $22::text::bigint[], $23::text::boolean[], $24::text::text[], $tasks) as f

-- insert_skips: occurrences that became no task
insert into duetime.skip (schedule, planned_at, until_at, count, reason, at, note)
select * from unnest($1::text::text[], $2::text::bigint[], $3::text::bigint[], $4::text::bigint[], $5::text::text[],
    $6::text::bigint[], $7::text::text[])

-- due_schedules: the store's time, when the time of the next schedule comes, and those whose time has come
select t.now, l.next_at, d.name, d.version, d.id, d.revision, d.next_at, d.declared, d.created_at, d.changed_at,
    d.changed_by, d.spec, d.state
from (select coalesce($1::bigint, duetime.clock()) as now offset 0) as t
cross join lateral (select duetime.next_schedule(t.now, $3::text[], $4::text[]) as next_at offset 0) as l
left join lateral duetime.due_schedules(t.now, $2::integer, $3::text[], $4::text[], $5::bigint, $6::text) as d on true

-- wake_schedules: have schedules looked at now that wait for the end of a run
with t as materialized (select coalesce($1::bigint, duetime.clock()) as now)
update duetime.schedule as s set next_at = (select t.now from t) where s.name = any (array(
    select w.name from duetime.schedule as w where w.name = any ($2::text[]) and w.waits
        and (w.next_at is null or w.next_at > (select t.now from t))
    order by w.name for update
)) returning s.next_at

-- schedules_by_name: schedules by name
select name, version, id, revision, next_at, declared, created_at, changed_at, changed_by, spec, state
    from duetime.schedule where name = any ($1::text[])

-- list_schedules: a page of schedules in the order of their names, as far as the bytes of their specs allow, and the
-- first that they do not
select b.name, b.version, b.id, b.revision, b.next_at, b.declared, b.created_at, b.changed_at, b.changed_by, b.spec,
    b.state
from (
    select s.*, sum(octet_length(s.spec)) over (order by s.name rows between unbounded preceding and 1 preceding)
        as before
    from (
        select name, version, id, revision, next_at, declared, created_at, changed_at, changed_by, spec, state
        from duetime.schedule
        where name > $1::text and name >= $2::text and ($3::text is null or name < $3::text)
            and ($4::text is null or handler = any (duetime.names($4::text)))
        and ($5::boolean is null or paused = $5::boolean)
            and ($6::boolean is null or (declared is not null) = $6::boolean)
        order by name limit $7::bigint
    ) as s
) as b where coalesce(b.before, 0) <= $8::bigint order by b.name

-- skips_of: occurrences of a schedule that became no task, the latest planned first
select schedule, planned_at, until_at, count, reason, at, note from duetime.skip
where schedule = $1::text and planned_at < coalesce($2::bigint, 9223372036854775807) order by planned_at desc, id desc
    limit $3::bigint

-- prune_skips: those that were decided long ago
with gone as (
    delete from duetime.skip where id = any (array(
        select s.id from duetime.skip as s where s.at < $1::bigint order by s.at limit $2::bigint for update skip locked
    )) returning id
)
select count(*) from gone

-- add_calendar: store a calendar if there is none of its name
insert into duetime.calendar (name, definition) values ($1::text, $2::text) on conflict (name) do nothing returning name

-- change_calendar: store a calendar in place of another
update duetime.calendar set definition = $2::text where name = $1::text returning name

-- delete_calendar: a calendar that is wanted no more
delete from duetime.calendar where name = $1::text returning name

-- all_calendars: every calendar
select name, definition from duetime.calendar order by name

-- take_duty: take or keep the turn at a duty, and tell who has it
select t.holder, t.until_at, t.now from duetime.take_duty($1::bigint, $2::text, $3::text, $4::bigint, $5::bigint) as t

-- leave_duty: end somebody's lease, and remember whose it was
update duetime.duty set until_at = least(until_at, coalesce($1::bigint, duetime.clock())) where name = $2::text
    and holder = $3::text

-- all_duties: the store's time and every lease, also those that are over
select t.now, d.name, d.holder, d.until_at from (select coalesce($1::bigint, duetime.clock()) as now) as t left
    join duetime.duty as d on true
order by d.name
