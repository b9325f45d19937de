"""`sparkonce demo`: send flights through a pipeline, kill its driver twice, and prove the output.

dataset      the flights as a table, as Kafka messages, and as counts from this machine
flight_cleaning   the job's Arrow function in continuous mode
child        a process of the demo: it writes JSON lines, and dies with its child processes
history      samples, checkpoints and kills with their times, and the numbers from them
plot         when the driver is killed
supervisor   load, kill, restart, kill, restart, stop
proof        checks what an independent reader finds
screen       the terminal
picture      the timeline as a PNG
demo_loader, demo_reader, demo_topics   plain Kafka clients
demo_job     the pipeline, in its own process

Every process is a child of the `supervisor`, and ends with it.
"""
