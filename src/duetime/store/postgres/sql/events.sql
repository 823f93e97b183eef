-- begin_telling: have what happens in a table written as events; false: it could not be locked just now
select duetime.begin_telling($1::text)

-- end_telling: write no more events of a table; false: it could not be locked just now
select duetime.end_telling($1::text)

-- put_follower: begin to follow, or go on
insert into duetime.follower as f (name, until_at, cursor)
values ($2::text, coalesce($1::bigint, duetime.clock()) + $3::bigint, $4::text)
on conflict (name) do update set until_at = greatest(f.until_at, excluded.until_at) returning cursor

-- followers: who follows events
select name, until_at, cursor from duetime.follower order by name

-- move_follower: remember how far it has dealt with events, unless somebody else has meanwhile
update duetime.follower set cursor = $3::text where name = $1::text and cursor = $2::text returning name

-- delete_follower: follow no more
delete from duetime.follower where name = $1::text returning name

-- delete_gone_followers: those whose time is over
delete from duetime.follower where until_at <= coalesce($1::bigint, duetime.clock())

-- events_horizon: all transactions with numbers below this one have ended
select pg_snapshot_xmin(pg_current_snapshot())::text

-- first_event: the lowest number of the events that some transactions have written
select min(number) from duetime.event where writer >= $1::text::xid8 and writer < $2::text::xid8

-- some_events: events of some transactions, after a number
select number, at, name, subject, handler, collection, attempt, outcome, worker, schedule, planned_at, until_at, count,
    note, by, error
from duetime.event
where number > $3::bigint and writer >= $1::text::xid8 and writer < $2::text::xid8 order by number limit $4::integer

-- delete_events: old events that everybody has dealt with
with gone as (
    delete from duetime.event where number = any (array(
        select number from duetime.event where at < $1::bigint and writer < $2::text::xid8 order by number
            limit $3::integer))
    returning 1
)
select count(*) from gone

-- events_idle: whether nobody follows, and nothing is left of those who did
select not exists (select from duetime.follower) and not exists (select from duetime.event)
    and not exists (select from pg_trigger as t join pg_class as c on c.oid = t.tgrelid
        join pg_namespace as n on n.oid = c.relnamespace where n.nspname = 'duetime' and t.tgname = 'tell')

-- telling: how many triggers write events
select count(*) from pg_trigger as t join pg_class as c on c.oid = t.tgrelid
    join pg_namespace as n on n.oid = c.relnamespace
    where n.nspname = 'duetime' and t.tgname in ('tell', 'tell_revived') and not t.tgisinternal
