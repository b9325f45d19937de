"""The hot path: librdkafka's batch calls on pointers into Arrow buffers."""
