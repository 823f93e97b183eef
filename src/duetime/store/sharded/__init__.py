"""One store over several: control, which the App's URL names, and shards with the tasks on their way. docs/design/scale.md says why."""
