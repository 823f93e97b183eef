-- Tokens. Of a secret only its digest is kept; the one before the last rotation is good until `old_until_at`. Scopes and handlers are
-- JSON. A removed token is gone; the audit remembers it.
create table duetime_token (
    id text primary key,
    name text not null unique,
    version integer not null,
    scopes text not null,
    handlers text not null,
    digest text not null,
    old_digest text,
    old_until_at integer,
    rate real,
    note text not null,
    created_at integer not null,
    created_by text not null,
    rotated_at integer,
    expires_at integer,
    last_used_at integer
) without rowid;

-- What operators did: who, what, on what, when, from where, and how it ended. Nothing here refers to other tables, so it outlives all.
create table duetime_audit (
    id text primary key,
    at integer not null,
    by text not null,
    token text,
    action text not null,
    subject text not null,
    origin text not null,
    outcome text not null,
    detail text not null
) without rowid;
create index duetime_audit_at on duetime_audit (at, id);
create index duetime_audit_by on duetime_audit (by, at, id);
create index duetime_audit_subject on duetime_audit (subject, at, id);
