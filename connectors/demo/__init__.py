"""`sparkonce demo`: a year of flights through a pipeline whose driver is killed twice, and a proof.

dataset      the flights, as a table, as Kafka messages, and counted on this machine
flight_cleaning   the job's Arrow function in continuous mode
child        a process of the demo: JSON lines out, killed with everything it started
history      what happened when: samples, checkpoints, kills, and the numbers made of them
plot         when the driver is killed
supervisor   load, kill, restart, kill, restart, stop
proof        what an independent reader must find
screen       the terminal
picture      the timeline as a PNG
demo_loader, demo_reader, demo_topics   plain Kafka clients
demo_job     the pipeline, in a process of its own

Every process is a child of the `supervisor`, and is gone when it ends.
"""
