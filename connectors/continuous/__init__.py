"""Continuous mode: a stage of long-running tasks under barriers. No Spark and no Kafka in here.

Read one checkpoint from top to bottom: the driver's `running_stage` sends a `Barrier` over the
`control_channel`; each `stage_task` flushes its transaction, begins the next one on another
producer, prepares the first and acknowledges; the checkpoint coordinator decides; the
`stage_committer` informs the tasks, and each task ends its own transaction. `barrier_pace` says
when the next barrier is due. A `contract_writer` writes to any sink that is not Kafka's; the driver
ends its transactions.
"""
