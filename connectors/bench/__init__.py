"""`sparkonce bench`: measure latency, throughput and the cost of a commit on your cluster.

    shape              what a record looks like
    audit              compares the output with the input
    replace_last_byte  the measured job's work
    system             what is measured: a command that does a task
    job_process        one run of a system's job, in its own process
    figures            percentiles, phases and rates from measurements
    measurements       the three measurements, each a line
    options            what a user may choose
    interruption       ctrl-C and SIGTERM, but never during the clean-up
    workbench          broker, topics and folder of one run; it removes them at the end
    screen, tables, picture   progress, the final table, the distribution
    prober, end_watcher, measuring_producer, committed_reader, topic_audit, bench_topics
                       plain Kafka clients: they share nothing with what they measure
    bench_job          the measured pipeline, in its own process

The folder `benchmarks/` of the repository measures other systems in the same way.
"""
