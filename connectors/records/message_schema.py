"""The rows that enter and leave a pipeline: Arrow schemas, the same as Spark's Kafka source's.

Built once here, so that a DataFrame's declared schema and the batches that fill it cannot differ
(a mismatch fails deep inside the JVM as `ArrowVectorAccessor getInt`).
"""

from __future__ import annotations

import pyarrow as pa

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))

#: A row of the source without headers: Spark's Kafka source's columns and types.
SOURCE_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
    ]
)

#: The same with `includeHeaders=true`.
SOURCE_SCHEMA_WITH_HEADERS = SOURCE_SCHEMA.append(pa.field("headers", HEADERS_TYPE))

#: A row of the sink after normalisation; only `value` must be given by the user.
SINK_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
