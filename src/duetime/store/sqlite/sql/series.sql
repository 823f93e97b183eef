-- add_piece: note what a process has counted, or a sample
insert into duetime_series_piece (at, counts) values (?, ?)

-- put_sample: remember the last sample
insert into duetime_sample (one, sample) values (1, ?) on conflict (one) do update set sample = excluded.sample

-- last_sample: the last sample
select sample from duetime_sample

-- pieces_between: what was written in a span of time and is not added up yet
select at, counts from duetime_series_piece where at >= ? and at < ? order by number

-- buckets_of_all: the buckets of a step in a span of time
select at, handler, counts from duetime_series where step = ? and at >= ? and at < ?

-- buckets_of: the same, of all handlers together and of one
select at, handler, counts from duetime_series where step = ? and at >= ? and at < ? and handler in ('', ?)

-- any_pieces: whether there is something to add up
select exists (select 1 from duetime_series_piece)

-- first_pieces: the first of what is not added up yet
select number, at, counts from duetime_series_piece order by number limit ?

-- delete_pieces: what was added up
delete from duetime_series_piece where number <= ?

-- bucket: one bucket
select counts from duetime_series where step = ? and at = ? and handler = ?

-- put_bucket: write a bucket
insert into duetime_series (step, at, handler, counts) values (?, ?, ?, ?)
on conflict (step, at, handler) do update set counts = excluded.counts

-- delete_buckets: the buckets of a step that are past their time
delete from duetime_series where step = ? and at < ?
