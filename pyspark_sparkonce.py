"""Lets PySpark find the source `kafka-exactly-once`; nobody else imports this file.

PySpark imports each installed module whose name begins with `pyspark_`, and registers its
`DefaultSource` (`pyspark/sql/worker/lookup_data_sources.py`). So the file lies at the top level.
"""

import sys
from pathlib import Path

try:
    from connectors.spark.data_source import KafkaExactlyOnceSource as DefaultSource
except ImportError as error:
    from pyspark.sql.datasource import DataSource

    _OURS = {"connectors": "spark/data_source.py", "transactions": "two_phase.py"}
    _found = {name: getattr(sys.modules.get(name), "__file__", None) for name in _OURS}
    _hiding = [
        file
        for name, file in _found.items()
        if file and not (Path(file).parent / _OURS[name]).exists()
    ]
    _WHY = (
        "The source kafka-exactly-once cannot be imported where Spark plans a query.\n"
        f"  where:  {_hiding[0] if _hiding else sys.executable}\n"
    )
    if _hiding:
        _WHY += (
            "  cause:  this file has the name of a package of sparkonce, and Spark's Python "
            "processes look first into the folder in which the script was started\n"
            "  look at: the name of that file, or the folder in which the script is started"
        )
    else:
        _WHY += f"  cause:  {error}\n  look at: the installation of sparkonce in this Python"

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """Says why there is no source, at its first use: PySpark would only say that none has this
        name.
        """

        @classmethod
        def name(cls) -> str:
            """Return the name for `format()`."""
            return "kafka-exactly-once"

        def __init__(self, options: dict[str, str]) -> None:  # noqa: ARG002 - PySpark gives them
            raise ImportError(_WHY)


__all__ = ["DefaultSource"]
