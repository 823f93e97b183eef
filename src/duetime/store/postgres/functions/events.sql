-- Events: triggers that write what happens, which exist only while somebody follows.

-- They have the owner's rights, as whoever may submit a task need not be allowed to write events.

-- Tasks that were submitted and stand whole in `due`. What comes back there has no size, or was put back by a claim.
create or replace function duetime.tell_added() returns trigger language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    insert into duetime.event (at, name, subject, handler, collection, attempt)
    select n.submitted_at, 'task.submitted', n.id::text, l.handler, nullif(l.collection, ''), 0
    from added as n join duetime.lane as l on l.id = n.lane
    where n.attempt = 0 and n.size is not null and n.payload is not null
        and (n.pos = n.due_at or n.pos = n.submitted_at);
    return null;
end $$;

-- Tasks that were submitted and have a row of their own. Others that get one stand elsewhere, or have no size there.
create or replace function duetime.tell_stored() returns trigger language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    insert into duetime.event (at, name, subject, handler, collection, attempt, schedule, planned_at)
    select n.submitted_at, 'task.submitted', n.id::text, n.handler, nullif(l.collection, ''), 0, n.schedule,
        n.planned_at
    from added as n join duetime.due as d on d.id = n.id join duetime.lane as l on l.id = n.lane
    where d.attempt = 0 and d.size is not null and d.payload is null;
    insert into duetime.event (at, name, subject, handler, collection, schedule, planned_at, note)
    select n.submitted_at, 'schedule.fired', n.schedule, n.handler, nullif(l.collection, ''), n.schedule, n.planned_at,
        n.id::text
    from added as n join duetime.due as d on d.id = n.id join duetime.lane as l on l.id = n.lane
    where n.schedule is not null and d.attempt = 0 and d.size is not null and d.payload is null;
    return null;
end $$;

-- Tasks that a worker has taken.
create or replace function duetime.tell_claimed() returns trigger language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    insert into duetime.event (at, name, subject, handler, collection, attempt, worker)
    select n.claimed_at, 'task.started', u.id::text, l.handler, nullif(l.collection, ''),
        coalesce(u.attempt, n.attempts[1]), n.worker
    from added as n cross join lateral unnest(n.tasks, n.lanes, n.attempts) with ordinality
        as u (id, lane, attempt, index)
    join duetime.lane as l on l.id = coalesce(u.lane, n.lanes[1])
    where n.worker <> '' order by u.index;
    return null;
end $$;

-- Tasks that have ended.
create or replace function duetime.tell_ended() returns trigger language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    insert into duetime.event (at, name, subject, handler, collection, attempt, outcome, worker, schedule, planned_at,
        error)
    select n.finished_at, e.name, n.id::text, n.handler, nullif(l.collection, ''), n.attempt, n.outcome, n.worker,
        n.schedule, n.planned_at, n.error
    from added as n join duetime.lane as l on l.id = n.lane
    cross join lateral (
        select 1 as index, 'task.quarantined' as name where n.state = 'failed' and n.outcome = 'lost'
        union all
        select 2, 'task.' || n.state
    ) as e where not n.kept order by e.index;
    return null;
end $$;

-- Finished tasks that an operator has taken back: they live again.
create or replace function duetime.tell_revived() returns trigger language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    insert into duetime.event (at, name, subject, handler, collection, attempt, outcome, schedule, planned_at)
    select t.due_at, 'task.retried', t.id::text, t.handler, nullif(l.collection, ''), g.attempt, g.outcome, t.schedule,
        t.planned_at
    from gone as g join duetime.task as t on t.id = g.id join duetime.lane as l on l.id = t.lane;
    return null;
end $$;

-- Attempts that have ended while their task goes on. The last attempt of a task that is taken back is written here,
-- too: that task has neither tries nor crashes.
create or replace function duetime.tell_attempts() returns trigger language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    insert into duetime.event (at, name, subject, handler, collection, attempt, outcome, worker, schedule, planned_at,
        error)
    select n.finished_at, case n.outcome when 'lost' then 'task.lost' when 'released' then 'task.released'
        else 'task.retrying' end, n.task::text, t.handler, nullif(l.collection, ''), n.attempt, n.outcome, n.worker,
        t.schedule, t.planned_at, n.error
    from added as n join duetime.task as t on t.id = n.task join duetime.lane as l on l.id = t.lane
    left join duetime.due as d on d.id = n.task
    where not n.kept and (n.outcome in ('retry_later', 'released') or (n.outcome in ('failed', 'timed_out')
        and d.tries > 0) or (n.outcome = 'lost' and d.crashes > 0));
    return null;
end $$;

-- Workers that come and go.
create or replace function duetime.tell_worker() returns trigger language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    if tg_op = 'INSERT' then
        insert into duetime.event (at, name, subject, worker, note)
        values (new.started_at, 'worker.started', new.id, new.id, new.host);
    else
        insert into duetime.event (at, name, subject, worker, note)
        values (coalesce(old.lost_at, duetime.clock()), case when old.lost_at is null then 'worker.stopped'
            else 'worker.lost' end, old.id, old.id, old.host);
    end if;
    return null;
end $$;

-- Gates that are closed and opened. The next probe of an automatic one is no event.
create or replace function duetime.tell_gate() returns trigger language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    if tg_op = 'DELETE' then
        insert into duetime.event (at, name, subject, handler, collection, until_at, note, by)
        values (duetime.clock(), 'gate.opened', old.handler, old.handler, nullif(old.collection, ''), old.until_at,
            old.note, old.set_by);
    elsif tg_op = 'INSERT' or new.set_at <> old.set_at or new.action <> old.action then
        insert into duetime.event (at, name, subject, handler, collection, until_at, note, by)
        values (new.set_at, case new.action when 'pause' then 'gate.paused' else 'gate.dropped' end, new.handler,
            new.handler, nullif(new.collection, ''), new.until_at, new.note, new.set_by);
    end if;
    return null;
end $$;

-- Occurrences that became no task.
create or replace function duetime.tell_skip() returns trigger language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    insert into duetime.event (at, name, subject, handler, schedule, planned_at, until_at, count, outcome, note)
    values (new.at, case new.reason when 'missed' then 'schedule.missed' else 'schedule.skipped' end, new.schedule,
        (select s.handler from duetime.schedule as s where s.name = new.schedule), new.schedule, new.planned_at,
        new.until_at, new.count, new.reason, new.note);
    return null;
end $$;

-- Schedules that are paused, by somebody or by themselves, and go on.
create or replace function duetime.tell_schedule() returns trigger language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    insert into duetime.event (at, name, subject, handler, collection, schedule, by)
    values (new.changed_at, case when new.paused then 'schedule.paused' else 'schedule.resumed' end, new.name,
        new.handler, nullif(new.collection, ''), new.name, new.changed_by);
    return null;
end $$;

-- Have what happens in a table written. One table in a transaction, and a short wait for its lock: whoever writes there
-- waits behind us. Returns whether it is so.
create or replace function duetime.begin_telling(p_table text) returns boolean language plpgsql security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '200ms' as $$
begin
    case p_table
    when 'due' then
        create trigger tell after insert on duetime.due referencing new table as added
            for each statement execute function duetime.tell_added();
    when 'task' then
        create trigger tell after insert on duetime.task referencing new table as added
            for each statement execute function duetime.tell_stored();
    when 'claim' then
        create trigger tell after insert on duetime.claim referencing new table as added
            for each statement execute function duetime.tell_claimed();
    when 'history' then
        create trigger tell after insert on duetime.history referencing new table as added
            for each statement execute function duetime.tell_ended();
        create trigger tell_revived after delete on duetime.history referencing old table as gone
            for each statement execute function duetime.tell_revived();
    when 'attempt' then
        create trigger tell after insert on duetime.attempt referencing new table as added
            for each statement execute function duetime.tell_attempts();
    when 'worker' then
        create trigger tell after insert or delete on duetime.worker
            for each row execute function duetime.tell_worker();
    when 'gate' then
        create trigger tell after insert or update or delete on duetime.gate
            for each row execute function duetime.tell_gate();
    when 'skip' then
        create trigger tell after insert on duetime.skip for each row execute function duetime.tell_skip();
    when 'schedule' then
        create trigger tell after update on duetime.schedule for each row when (old.paused <> new.paused)
            execute function duetime.tell_schedule();
    end case;
    return true;
exception
    when duplicate_object then return true;
    when lock_not_available then return false;
end $$;

-- Write no more events of a table, unless somebody follows. Nobody can begin to meanwhile. Returns whether it could be
-- locked.
create or replace function duetime.end_telling(p_table text) returns boolean language plpgsql security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '200ms' set client_min_messages = 'warning' as $$
begin
    lock table duetime.follower in share mode;
    if exists (select from duetime.follower) then
        return true;
    end if;
    case p_table
    when 'due' then drop trigger if exists tell on duetime.due;
    when 'task' then drop trigger if exists tell on duetime.task;
    when 'claim' then drop trigger if exists tell on duetime.claim;
    when 'history' then
        drop trigger if exists tell on duetime.history;
        drop trigger if exists tell_revived on duetime.history;
    when 'attempt' then drop trigger if exists tell on duetime.attempt;
    when 'worker' then drop trigger if exists tell on duetime.worker;
    when 'gate' then drop trigger if exists tell on duetime.gate;
    when 'skip' then drop trigger if exists tell on duetime.skip;
    when 'schedule' then drop trigger if exists tell on duetime.schedule;
    end case;
    return true;
exception
    when lock_not_available then return false;
end $$;
