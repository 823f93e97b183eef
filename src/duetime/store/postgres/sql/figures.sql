-- note_figure_source: begin a write of a process, unless it is a repeat
insert into duetime.figure_source as s (source, number, written_at)
values ($1::text, $2::bigint, coalesce($3::bigint, duetime.clock()))
on conflict (source) do update set number = excluded.number, written_at = excluded.written_at
    where s.number < excluded.number
returning s.source

-- add_figures: add to what a process has counted, and note when
with piece as (
    insert into duetime.series_piece (at, counts) values (coalesce($6::bigint, duetime.clock()), $7::text)
)
insert into duetime.figure as f (source, name, handler, part, count)
select $1::text, v.* from unnest($2::text[], $3::text[], $4::text[], $5::bigint[]) as v
on conflict (source, name, handler, part) do update set count = f.count + excluded.count

-- sum_figures: what all processes have counted together
select name, handler, part, sum(count)::bigint from duetime.figure group by name, handler, part

-- take_silent: name processes that have been silent for long, and keep others from doing so; one that writes now is not
-- among them
delete from duetime.figure_source where written_at < $1::bigint returning source

-- fold_figures: add up what they have counted; in one order, so that two who do so do not wait for one another in a
-- circle
with gone as (delete from duetime.figure where source = any ($1::text[]) returning name, handler, part, count)
insert into duetime.figure as f (source, name, handler, part, count)
select '', name, handler, part, sum(count)::bigint from gone group by name, handler, part order by name, handler, part
on conflict (source, name, handler, part) do update set count = f.count + excluded.count
