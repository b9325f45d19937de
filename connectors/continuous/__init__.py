"""Continuous mode: a stage of long-running tasks under barriers. No Spark and no Kafka in here.

Read one checkpoint from top to bottom: the driver's `running_stage` sends a `Barrier` over the
`control_channel`; each `stage_task` flushes its transaction, begins the next one on another
producer, prepares the first and acknowledges; the checkpoint coordinator decides; the
`stage_committer` tells the tasks, and each ends its own transaction. `barrier_pace` says when the
next one is due. Any other sink than Kafka's is written through `contract_writer`; the driver ends
it.
"""
