"""`sparkonce bench`: latency, throughput and the commit's own cost, on a cluster of one's own.

    shape              what a record looks like
    audit              what came out, against what went in
    replace_last_byte  the measured job's work
    system             what can be measured: a command that does a task
    job_process        one run of a system's job, in a process of its own
    figures            percentiles, phases and rates from measurements
    measurements       the three measurements, each a line
    options            what a user may choose
    interruption       ctrl-C and SIGTERM, but never in the middle of tidying up
    workbench          broker, topics and folder of one run; nothing outlives it
    screen, tables, picture   progress, the final table, the distribution
    prober, end_watcher, measuring_producer, committed_reader, topic_audit, bench_topics
                       plain Kafka clients: they share nothing with what they measure
    bench_job          the measured pipeline, in a process of its own

The repository's own `benchmarks/` puts peers beside the same measurements.
"""
