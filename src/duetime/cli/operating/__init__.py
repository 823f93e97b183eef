"""Commands for operators: gates, counts, tokens, migrations, doctor."""
