"""The command `sparkonce run` as a file, for spark-submit: it takes a file, and no command.

::

    spark-submit --master yarn --deploy-mode cluster --files job.toml sparkonce_run.py job.toml

It lies at the top level: Python looks for modules first beside the file that it runs.
"""

import sys

from connectors.cli.main import main

if __name__ == "__main__":
    sys.argv.insert(1, "run")
    main()
