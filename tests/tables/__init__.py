"""Tables beside plain models, through rounds, kills and lost answers."""
