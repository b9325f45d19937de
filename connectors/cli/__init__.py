"""The command `sparkonce`: one file per subcommand, imported only when it runs."""
