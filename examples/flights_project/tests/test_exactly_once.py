"""The whole promise of this project, in ten lines."""

from pathlib import Path

JOB = Path(__file__).parents[1] / "job.toml"


def test_every_flight_comes_through_exactly_once(sparkonce_topic, sparkonce_pipeline):
    flights, clean = sparkonce_topic("flights", partitions=2), sparkonce_topic("clean")
    flights.produce((f"{n}", f'{{"carrier": "AA", "dep_delay": {n % 40}}}') for n in range(300))
    pipeline = sparkonce_pipeline(JOB, FLIGHTS=flights, CLEAN=clean)
    pipeline.kill_at("records_flushed")  # a worker, in phase 1
    pipeline.kill_at("decision_durable")  # the driver, between the phases
    pipeline.run()
    pipeline.audit(input=flights, output=clean, id="key").assert_exactly_once()
