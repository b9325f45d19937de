"""What a user says: source, sinks, modes, the job file."""
