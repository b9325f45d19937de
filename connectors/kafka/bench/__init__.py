"""The benchmark's plain clients: its topics, its producers and its independent readers.

Only librdkafka, as any application would use it; nothing of the source and the sink.
"""
