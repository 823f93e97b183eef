#!/bin/sh
# A worker with curl: pull_worker.sh HANDLER COMMAND…
# COMMAND finds the claimed task as JSON on its standard input and prints its result as JSON, or nothing. Exit code 0 is success, 75
# (EX_TEMPFAIL) asks to run again later, 65 (EX_DATAERR) fails without retries, any other one fails. docs/pull-workers.md explains each step.
set -u
handler=$1; shift
server=${DUETIME_SERVER:-http://127.0.0.1:8420}

repeats=20
ask() {  # METHOD PATH BODY; repeated until it is answered, which is always harmless
    printf %s "$3" | curl --silent --show-error --fail --retry $repeats --retry-connrefused --retry-delay 1 --request "$1" "$server$2" \
        ${DUETIME_TOKEN:+--header "Authorization: Bearer $DUETIME_TOKEN"} --header 'Content-Type: application/json' --data-binary @-
}
complete() {  # HOW IT ENDED
    ask POST "/v1/tasks/$task/complete" "{\"worker\": \"$worker\", \"attempt\": $attempt, $1}"
}
worker=$(ask POST /v1/workers "{\"name\": \"shell $$\", \"lease\": 30, \"handlers\": {\"$handler\": {}}}" | sed 's/^{"id":"\([^"]*\)".*/\1/')
[ -n "$worker" ] || exit 1
echo "ready $worker"

stop=
trap 'stop=1' TERM INT
(  # a worker that cannot renew must stop; and nobody renews for a script that was killed
    while sleep 10 && kill -0 $$ 2>/dev/null && ask POST "/v1/workers/$worker/renew" '{}'; do :; done
    kill $$ 2>/dev/null
) >/dev/null &
renewing=$!

refused='"outcome": "failed", "error": {"type": "Refused", "message": "the server refused the result; see the logs of the worker"}'
number=0
while [ -z "$stop" ]; do
    number=$((number + 1))
    claimed=$(ask POST "/v1/workers/$worker/claim" "{\"claim\": $number, \"wait\": 5}") || break
    task=$(printf %s "$claimed" | sed -n 's/^{"items":\[{"id":"\([^"]*\)".*/\1/p')
    [ -n "$task" ] || continue
    attempt=$(printf %s "$claimed" | sed 's/.*"attempt":\([0-9]*\).*/\1/')
    result=$(printf %s "$claimed" | sed 's/^{"items":\[\(.*\)\]}$/\1/' | "$@")
    case $? in
        0) end="\"result\": ${result:-null}" ;;
        75) end='"outcome": "retry", "delay": 10' ;;
        65) end='"outcome": "failed", "fatal": true, "error": {"type": "ExitCode", "message": "65"}' ;;
        *) end='"outcome": "failed", "error": {"type": "ExitCode", "message": "see the logs of the worker"}' ;;
    esac
    # 22: the server refused it, because the result is not JSON, for example, or too large
    answer=$(complete "$end") || { [ $? -eq 22 ] && answer=$(complete "$refused"); } || break
    echo "$task $attempt $answer"
done
kill $renewing 2>/dev/null
repeats=2  # if the server is gone, its lease ends by itself
ask DELETE "/v1/workers/$worker" '{}'
