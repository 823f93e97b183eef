-- What workers count: each process adds to rows of its own, so that nobody waits for another, and a sum over all of them only grows.
-- `number` is that of a process's last write, so that a repeat is known. Rows of processes that have been silent for long are added
-- up under the source ''. The rows are few and updated often.
create table duetime.figure_source (
    source text collate "C" primary key,
    number bigint not null,
    written_at bigint not null
) with (fillfactor = 50);

create table duetime.figure (
    source text collate "C" not null,
    name text collate "C" not null,
    handler text collate "C" not null,
    part text collate "C" not null,
    count bigint not null,
    primary key (source, name, handler, part)
) with (fillfactor = 50);
