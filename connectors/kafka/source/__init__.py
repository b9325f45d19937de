"""The source: offsets, plans of ranges, and the reader of one range."""
