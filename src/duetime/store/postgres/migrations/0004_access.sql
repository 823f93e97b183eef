-- Tokens. Of a secret only its digest is kept; the one before the last rotation is good until `old_until_at`. Scopes and handlers are
-- JSON. A removed token is gone; the audit remembers it. The table is small and its last uses are written often.
create table duetime.token (
    id text primary key,
    name text collate "C" not null unique,
    version bigint not null,
    scopes text not null,
    handlers text not null,
    digest text not null,
    old_digest text,
    old_until_at bigint,
    rate double precision,
    note text not null,
    created_at bigint not null,
    created_by text not null,
    rotated_at bigint,
    expires_at bigint,
    last_used_at bigint
) with (fillfactor = 50);

-- What operators did: who, what, on what, when, from where, and how it ended. Nothing here refers to other tables, so it outlives all.
create table duetime.audit (
    id text collate "C" primary key,
    at bigint not null,
    by text not null,
    token text,
    action text not null,
    subject text not null,
    origin text not null,
    outcome text not null,
    detail text not null
);
create index audit_at on duetime.audit (at, id);
create index audit_by on duetime.audit (by, at, id);
create index audit_subject on duetime.audit (subject, at, id);
