-- keep_sample: note a sample, and remember it as the last one
with piece as (insert into duetime.series_piece (at, counts) values ($1::bigint, $2::text))
insert into duetime.sample (one, sample) values (1, $3::text)
on conflict (one) do update set sample = excluded.sample

-- last_sample: the last sample
select sample from duetime.sample

-- read_series: the time, the last sample, buckets of a step and what is not added up yet, in one look: what is added
-- up meanwhile is seen once
with present as materialized (select coalesce($1::bigint, duetime.clock()) as now_at)
select 'now', p.now_at, null::text, null::text, null::bigint from present as p
union all
select 'sample', null, null, s.sample, null from duetime.sample as s
union all
select 'bucket', b.at, b.handler, b.counts, null from duetime.series as b
where b.step = $2::integer and b.at >= $3::bigint and b.at < $4::bigint
    and ($5::text is null or b.handler in ('', $5::text))
union all
select 'piece', x.at, null, x.counts, x.number from duetime.series_piece as x
where x.at >= $3::bigint and x.at < $4::bigint + $2::integer::bigint * 1000000
order by 5 nulls first

-- any_pieces: whether there is something to add up
select exists (select from duetime.series_piece)

-- take_pieces: take the first of what is not added up yet. Everybody who adds up begins with the first, so the second
-- waits here until the first has written the buckets. That is why locked ones are not passed over.
with first as materialized (
    select x.number from duetime.series_piece as x order by x.number limit $1::integer for update
)
delete from duetime.series_piece as p using first as f where p.number = f.number returning p.number, p.at, p.counts

-- buckets_stored: what is stored of some buckets
select b.at, b.handler, b.counts from unnest($2::bigint[], $3::text[]) as k (at, handler)
join duetime.series as b on b.step = $1::integer and b.at = k.at and b.handler = k.handler

-- put_buckets: write buckets
insert into duetime.series (step, at, handler, counts)
select $1::integer, v.at, v.handler, v.counts
from unnest($2::bigint[], $3::text[], $4::text[]) as v (at, handler, counts)
on conflict (step, at, handler) do update set counts = excluded.counts

-- delete_buckets: the buckets of a step that are past their time
delete from duetime.series where step = $1::integer and at < $2::bigint
