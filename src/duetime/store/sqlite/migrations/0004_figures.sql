-- What workers count: each process adds to rows of its own, and a sum over all of them only grows. `number` is that of its last
-- write, so that a repeat is known. Rows of processes that have been silent for long are added up under the source ''.
create table duetime_figure_source (
    source text primary key,
    number integer not null,
    written_at integer not null
) without rowid;

create table duetime_figure (
    source text not null,
    name text not null,
    handler text not null,
    part text not null,
    count integer not null,
    primary key (source, name, handler, part)
) without rowid;
