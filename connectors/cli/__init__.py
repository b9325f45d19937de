"""The command `sparkonce`: one file per subcommand, imported when it is asked for."""
