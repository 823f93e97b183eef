-- alert_documents: documents of a kind; null: of every name, otherwise of a JSON array of names
select kind, name, version, body from duetime_alerting
where kind = :kind and (:names is null or name in (select value from json_each(:names))) order by name

-- alert_version: in which version a document is
select version from duetime_alerting where kind = ? and name = ?

-- put_alert_document: a document in place of an earlier one
insert or replace into duetime_alerting (kind, name, version, body) values (?, ?, ?, ?)

-- delete_alert_document: a document that is over
delete from duetime_alerting where kind = ? and name = ?
