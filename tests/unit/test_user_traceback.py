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
CRASHED = f"""\
Return Message: Traceback (most recent call last):
  File "{OURS}/spark/micro_batch.py", line 125, in _run_job
    rows: Any = frame._jdf.collectAsList()
py4j.protocol.Py4JJavaError: An error occurred while calling o77.collectAsList.
: org.apache.spark.SparkException: Job aborted: worker exited (crashed)
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:1)
SQLSTATE: 39000
"""
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/jobs/clean.py", line 8, in clean
  |     async with asyncio.TaskGroup() as group:
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/jobs/words.py", line 3, in number
    |     raise ValueError("no number")
    | ValueError: no number
    +------------------------------------
"""
SYNTAX = """\
Traceback (most recent call last):
  File "/usr/lib/python3.11/importlib/__init__.py", line 126, in import_module
    return _bootstrap._gcd_import(name[level:], package, level)
  File "/jobs/clean.py", line 2
    def f(:
          ^
SyntaxError: invalid syntax
"""
ELSEWHERE = """\
Traceback (most recent call last):
  File "/jobs/clean.py", line 5, in clean
    return json.loads(value)
  File "/opt/env/lib/python3.11/json/decoder.py", line 355, in raw_decode
    raise JSONDecodeError("Expecting value", s, err.value) from None
  File "/usr/lib/python3/dist-packages/pandas/core.py", line 1, in frame
json.decoder.JSONDecodeError: Expecting value: line 1
"""
SEVERAL_LINES = """\
Traceback (most recent call last):
  File "/jobs/clean.py", line 5, in clean
    return Row(**row)
pydantic_core.ValidationError: 1 error
price
  should be a number
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner(PythonRunner.scala:1097)
"""
QUOTES_ONE = WORKER.replace("b'x'", "'Traceback (most recent call last):'")
CUT_OFF = WORKER.replace("ValueError: no number: b'x'\n", "")
CLEAN = "(/jobs/clean.py, line 5, in clean)"
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
        (CRASHED, "org.apache.spark.SparkException: Job aborted: worker exited (crashed)"),
        (GROUP, "ValueError: no number (/jobs/words.py, line 3, in number)"),
        (SYNTAX, "SyntaxError: invalid syntax (/jobs/clean.py, line 2)"),
        (ELSEWHERE, f"json.decoder.JSONDecodeError: Expecting value: line 1 {CLEAN}"),
        (SEVERAL_LINES, f"pydantic_core.ValidationError: 1 error price should be a number {CLEAN}"),
        (QUOTES_ONE, PLACED.replace("b'x'", "'Traceback (most recent call last):'")),
        (CUT_OFF, None),
        (f"{CUT_OFF}\n\tat py4j.Protocol.getReturnValue(Protocol.java:476)\nSQLSTATE: 3900", None),
        ("java.lang.OutOfMemoryError: Java heap space", None),
        ("", None),
    ],
)
def test_the_innermost_error_and_the_users_own_line(text: str, found: str | None):
    assert last_raised(text) == found


def test_a_long_message_is_cut():
    found = last_raised(WORKER.replace("b'x'", "x" * 9_000)) or ""
    assert found.endswith("... (/jobs/words.py, line 3, in number)")
    assert len(found) < 600


def test_a_folder_beside_ours_is_the_users():
    text = WORKER.replace("/jobs/", f"{OURS}_jobs/")
    assert f"({OURS}_jobs/words.py, line 3, in number)" in (last_raised(text) or "")


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
