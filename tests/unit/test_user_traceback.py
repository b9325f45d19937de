"""The error of a user's function, out of what Spark makes of it; texts are those of Spark 4.3."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, PythonException, StreamingQueryException

import connectors
from connectors.records.user_traceback import last_raised
from connectors.spark.failures import reason

CAPTURED = "pyspark.errors.exceptions.captured"
OURS = Path(connectors.__file__).parent
WORKER = """\
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pyspark/worker.py", line 4327, in invoke_udf
    run_process()
  File "/jobs/clean.py", line 12, in upper
    return number(value)
           ^^^^^^^^^^^^^
  File "/jobs/words.py", line 3, in number
    raise ValueError(f"no number: {value!r}")
ValueError: no number: b'x'
"""
PLACED = "ValueError: no number: b'x' (/jobs/words.py, line 3, in number)"
BATCH = f"""\
[STREAM_FAILED] Query [id = 7b17, runId = c3a1] terminated with exception: Return Message: Traceback (most recent call last):
  File "{OURS}/spark/micro_batch.py", line 125, in _run_job
    rows: Any = frame._jdf.collectAsList()
                ^^^^^^^^^^^^^^^^^^^^^^^^^^
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
{WORKER}
\tat py4j.Protocol.getReturnValue(Protocol.java:476)
SQLSTATE: 39000
"""  # noqa: E501
SQL = f"""\
Return Message: Traceback (most recent call last):
  File "{OURS}/spark/micro_batch.py", line 125, in _run_job
    rows: Any = frame._jdf.collectAsList()
pyspark.errors.exceptions.captured.ArithmeticException: [DIVIDE_BY_ZERO] Division by zero.
== SQL (line 1, position 18) ==
"""
LIBRARY = """\
Traceback (most recent call last):
  File "/jobs/clean.py", line 15, in arrow
    return pc.divide(batch["value"], 0)
  File "/venv/lib/python3.11/site-packages/pyarrow/compute.py", line 255, in wrapper
  File "pyarrow/error.pxi", line 92, in pyarrow.lib.check_status
pyarrow.lib.ArrowInvalid: no kernel
"""
NOTEBOOK = """\
Traceback (most recent call last):
  File "<ipython-input-3>", line 2, in upper
  File "<frozen importlib._bootstrap>", line 241, in _call_with_frames_removed
  File "/usr/lib/spark/python/lib/pyspark.zip/pyspark/util.py", line 9, in wrapper
KeyError: 'price'
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (WORKER, PLACED),
        (BATCH, PLACED),
        (SQL, f"{CAPTURED}.ArithmeticException: [DIVIDE_BY_ZERO] Division by zero."),
        (LIBRARY, "pyarrow.lib.ArrowInvalid: no kernel (/jobs/clean.py, line 15, in arrow)"),
        (NOTEBOOK, "KeyError: 'price' (<ipython-input-3>, line 2, in upper)"),
        (WORKER.replace("ValueError: no number: b'x'\n", ""), None),
        ("java.lang.OutOfMemoryError: Java heap space", None),
        ("", None),
    ],
    ids=["worker", "batch", "sql", "library", "notebook", "cut off", "java", "nothing"],
)
def test_the_innermost_error_and_the_users_own_line(text: str, found: str | None):
    assert last_raised(text) == found


def test_our_own_files_are_nobodys_function():
    text = WORKER.replace("/jobs/words.py", f"{OURS}/records/arrow_transform.py")
    assert last_raised(text) == "ValueError: no number: b'x' (/jobs/clean.py, line 12, in upper)"


@pytest.mark.parametrize("kind", [PythonException, StreamingQueryException])
def test_what_spark_raises_is_told_in_one_line(kind: type[PySparkException]):
    assert reason(kind(BATCH)) == PLACED


def test_what_has_no_traceback_is_its_first_line():
    assert reason(StreamingQueryException("\n[A] no\n\tat x")) == "StreamingQueryException: [A] no"
    assert reason(OSError()) == "OSError: "


def test_what_was_raised_in_this_process_has_its_place():
    with pytest.raises(LookupError) as raised:
        looked_up("price")
    place = rf"\({re.escape(__file__)}, line \d+, in looked_up\)"
    assert re.fullmatch(rf"LookupError: no column 'price' {place}", reason(raised.value))


def looked_up(name: str) -> None:
    raise LookupError(f"no column {name!r}")
