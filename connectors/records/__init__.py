"""What a record is: its Arrow schema, functions on batches, its fingerprint."""
